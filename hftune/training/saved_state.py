"""What a checkpoint states about its progress, compared with the run that resumes it. For ``hftune.training.fitting``.

Checksums find accidents. A run directory can also come from a stranger, who can write matching checksums: a checkpoint
at step 10¹² of 30 would let Trainer skip all training and call the run complete.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from hftune.errors import HftuneError
from hftune.files import read_json
from hftune.training.checkpoints import read_manifest, step_of

STATE = "trainer_state.json"
PROGRESS = "progress.json"
"""What Trainer's own state leaves out: the loss since the last log row, the time spent, whether training is over."""


def check_saved_state(path: Path, total: int, *, stops_early: bool) -> None:
    """Refuse a checkpoint whose files contradict each other or the run.

    Args:
        path: A checkpoint whose checksums match.
        total: Steps of the whole run.
        stops_early: Whether the run can finish before that.

    Raises:
        HftuneError: Names what contradicts what.
    """
    wrong = _contradiction(path, total, stops_early=stops_early)
    if wrong:
        raise HftuneError(
            f"{path} contradicts itself or this run: {wrong}",
            hint=f"it was changed after it was saved; delete {path.name} to resume from an older checkpoint, or start "
            "a new run with another --output",
        )


def _contradiction(path: Path, total: int, *, stops_early: bool) -> str | None:
    manifest, state, progress = read_manifest(path), read_json(path / STATE), read_json(path / PROGRESS)
    step, best = step_of(path), manifest.get("best")
    for name, stated in (("manifest.json", manifest.get("step")), (STATE, state.get("global_step"))):
        if not _is_count(stated) or stated != step:
            return f"{name} is at step {_shown(stated)}, its folder at step {step:,}"
    if step > total:
        return f"it is at step {step:,}, and the run has {total:,} steps"
    if best is not None and not (_is_count(best) and 1 <= best <= step):
        return f"its best step is {_shown(best)}"
    if state.get("best_global_step") != best:
        return (
            f"the best step is {_shown(best)} in manifest.json and {_shown(state.get('best_global_step'))} in {STATE}"
        )
    finished = progress.get("finished")
    if not isinstance(finished, bool) or (finished and step < total and not stops_early):
        return f"{PROGRESS} calls training finished ({_shown(finished)}) at step {step:,} of {total:,}"
    numbers = [progress.get("seconds"), progress.get("aside"), *_listed(progress.get("loss"))]
    if not all(isinstance(one, int | float) and math.isfinite(one) for one in numbers) or len(numbers) < 3:
        return f"{PROGRESS} has no seconds, aside and loss as numbers"
    return None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [None]


def _shown(value: Any) -> str:
    return f"{value:,}" if _is_count(value) else repr(value)[:40]
