"""Opening a run directory for one sitting: made or taken up again, held by one process, with every end explained.

Used by ``hftune.pipeline``.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hftune.child_process import Death, loader_worker_death
from hftune.config.recipe import Recipe
from hftune.errors import HftuneError, Interrupted, RunFailed
from hftune.files import disk_is_full, remove_staged
from hftune.runs.directory import RunDir, is_run
from hftune.training.launch import a_process_died, contact_is_lost, is_main_process, wait_for_everyone
from hftune.training.memory import out_of_memory
from hftune.training.stopping import ending_at_once

MAY_CHANGE: Any = {"hub": True, "train": {"keep_checkpoints"}, "task": {"baselines"}}
"""Settings that can differ when a run is resumed: where it is published, how much disk it takes, what it is compared
with."""


@contextmanager
def opened(path: Path, recipe: Recipe, resume: bool) -> Iterator[RunDir]:
    """The run directory, held by this process alone; gone again when nothing was worth keeping."""
    if not is_main_process():
        with _says_how_to_go_on(path), ending_at_once(), out_of_memory(*_what_to_lower(recipe)):
            wait_for_everyone()  # until the main process has made it
            if not path.is_dir():
                raise HftuneError(
                    f"the main process has made the run directory {path}, but this process does not see it",
                    hint="name an --output on a file system that all machines share",
                )
            yield RunDir(path)
        return
    if resume and is_run(path):
        run = RunDir.open(path, to_train=True)
        refuse_other_recipe(run, recipe)
    else:
        run = RunDir.create(path)
    try:
        with run.locked(), _says_how_to_go_on(path), ending_at_once(), out_of_memory(*_what_to_lower(recipe)):
            remove_staged(path)
            wait_for_everyone()
            yield run
    finally:
        run.discard_if_not_begun()


@contextmanager
def _says_how_to_go_on(path: Path) -> Iterator[None]:
    """Explain an end that leaves a run to go on with; every process of a launch says the same."""
    try:
        yield
    except Interrupted as stop:
        stop.hint = f"go on with --output {path} --resume"
        if stop.exit_code == 128 + signal.SIGTERM and a_process_died():
            # The launcher ends all processes when one has died; that one is the cause, not the SIGTERM.
            lost = _lost_a_process()
            stop.message, stop.hint = lost.message, f"{lost.hint}. Then continue with --output {path} --resume"
        raise
    except KeyboardInterrupt as stop:
        raise Interrupted(
            f"stopped; what was saved in {path} is kept",
            hint=f"go on with --output {path} --resume",
            signal_number=signal.SIGINT,
        ) from stop
    except Exception as error:
        if contact_is_lost(error):
            raise _lost_a_process() from error
        worker = loader_worker_death(error)
        if worker is not None:
            raise RunFailed(
                f"a data loading process ({worker[0]}) {worker[1]}; checkpoints in {path} are intact",
                hint=f"{worker[1].hint}; train.dataloader_num_workers=0 loads data in the training process. Then "
                "continue with "
                f"--output {path} --resume",
            ) from error
        if not disk_is_full(error):
            raise
        raise RunFailed(
            f"the disk is full: {path} could not be finished; its checkpoints are intact",
            hint=f"free some space, then go on with --output {path} --resume",
        ) from error


def _lost_a_process() -> RunFailed:
    return RunFailed(
        "another process of this launch ended, and this one can't continue alone",
        hint="see its own message. If there is none, a signal killed it, and the launcher's report has the exit code. "
        f"-9 is SIGKILL: {Death('SIGKILL').hint}. -4 is SIGILL: {Death('SIGILL').hint}. If it ran on another machine, "
        "see the log there",
    )


def _what_to_lower(recipe: Recipe) -> tuple[str, str]:
    """What memory goes with before and after training, where rows are encoded and scored."""
    size = recipe.train.per_device_eval_batch_size
    return (
        "outside training",
        f"take a smaller model, or a lower train.per_device_eval_batch_size ({size}), which scores the same",
    )


def refuse_other_recipe(run: RunDir, recipe: Recipe) -> None:
    """A run goes on with the recipe it began with; only what does not change the result may change."""
    before, now = (one.model_dump(exclude=MAY_CHANGE) for one in (run.read_recipe(), recipe))
    changed = [
        f"{section}.{key}: {before[section].get(key)!r} → {value!r}"
        for section, values in now.items()
        for key, value in values.items()
        if before[section].get(key) != value
    ]
    if changed:
        raise HftuneError(
            f"{run.path} was begun with another recipe; changed: {'; '.join(changed)}",
            hint=f"leave those out to go on (--output {run.path} --resume), or begin anew with another --output",
        )
