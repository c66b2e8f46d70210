"""The proof that what is on the Hub is what was sent: fetched anew, compared file by file, loaded and asked.

Called by ``hftune.hub.publish`` after the upload.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hftune.config.model import Trust
from hftune.errors import RunFailed
from hftune.files import read_json, sha256
from hftune.hub.attempt import Patience, insist
from hftune.hub.contents import MARK
from hftune.runs.directory import RunDir
from hftune.verify import compare, fresh_outputs

PROBE_ROWS = 8
PLAIN_TEXTS = ("the food was great but we will never come back", "Where was it, and when?")
"""What a model is asked whose run keeps no predictions: only the two answers are compared, so any text will do."""
ANSWERS = frozenset(
    {"id", "gold", "label", "probabilities", "confidence", "ended", "gold_probability"}
    | {"seen_in_pretraining", "seen_in_finetuning"}
)
"""Columns of predictions/*.jsonl that no model is asked; the others are."""


def prove(
    run: RunDir,
    files: dict[str, Path],
    repo: str,
    commit: str,
    token: str,
    patience: Patience,
    *,
    trust: Trust,
) -> None:
    """Fetch the commit into an empty folder, compare it with what was sent, and let both models answer the same rows.

    Raises:
        RunFailed: The Hub holds something else.
    """
    size = sum(path.stat().st_size for path in files.values())
    with tempfile.TemporaryDirectory(prefix="hftune-proof-") as cache:
        request = {"repo": repo, "revision": commit, "cache": cache}
        fetched = Path(insist("download", request, token, patience, size=size)["folder"])
        for name, path in files.items():
            if not (fetched / name).is_file() or sha256(fetched / name) != sha256(path):
                raise _differs(f"{name} on the Hub ({repo}, commit {commit[:10]})", "its bytes differ")
        kind, rows = run.read_recipe().task.kind, probe_rows(run)
        try:
            got, expected = fresh_outputs([fetched, run.model], kind, rows, trust=trust)
            compare(fetched, got, expected)
        except RunFailed as error:
            raise _differs(f"the model on the Hub ({repo}, commit {commit[:10]})", error.message) from error


def _differs(what: str, how: str) -> RunFailed:
    return RunFailed(f"{what} is not what was sent: {how}", hint="push again; the run itself is intact")


def probe_rows(run: RunDir) -> list[dict[str, Any]]:
    """Rows to ask both models: the first that the run has answered itself."""
    for split in ("validation", "test"):
        rows = run.read_predictions(split)[:PROBE_ROWS]
        if rows:
            return [{name: value for name, value in row.items() if name not in ANSWERS} for row in rows]
    pairs = read_json(run.model / MARK).get("pairs")
    return [{"text": text, "text_pair": text} if pairs else {"text": text} for text in PLAIN_TEXTS]
