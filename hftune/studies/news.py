"""What a run has written to its history since one last looked. Used by workers, and by the launcher of cluster jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class NewRows:
    """Reads history.jsonl as it grows; rows come once each."""

    def __init__(self, path: Path) -> None:
        """The file need not be there yet."""
        self._path = path
        self._offset = 0
        self._told = (-1, False)
        self._evaluations = 0

    def read(self) -> list[dict[str, Any]]:
        """The rows that were finished since the last call."""
        size = self._path.stat().st_size if self._path.is_file() else 0
        if size < self._offset:
            self._offset = 0  # a resumed run cut its history back to its checkpoint; what was told is passed over
        if size == self._offset:
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            written = file.read()
        whole = written[: written.rfind(b"\n") + 1]
        self._offset += len(whole)
        rows = [json.loads(line) for line in whole.splitlines()]
        new = [row for row in rows if (row["step"], "split" in row) > self._told]
        self._told = max([self._told, *((row["step"], "split" in row) for row in new)])
        return new

    def evaluations(self, rows: list[dict[str, Any]], metric: str) -> list[dict[str, Any]]:
        """The validation scores among rows, numbered from 1 in the order in which the run made them.

        Numbers and not updates, so that settings with other batch sizes can be compared evaluation by evaluation.
        """
        found = []
        for row in rows:
            if row.get("split") == "validation" and row.get(metric) is not None:
                self._evaluations += 1
                found.append({"number": self._evaluations, "score": row[metric]})
        return found
