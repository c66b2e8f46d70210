"""The data: where it came from, how many rows, the fingerprints by which two runs are known to share it."""

from __future__ import annotations

from hftune.runs.facts import RunFacts
from hftune.runs.page import Section


def data(facts: RunFacts) -> Section | None:
    """Rows and fingerprints by split, and what was done to the rows."""
    found = facts.metrics.get("data")
    if not found:
        return None
    return Section(
        id="data",
        title="Data",
        template="data.html.j2",
        lead=f"Source: {found['source']}",
        values={
            "rows": found.get("rows", {}),
            "fingerprints": found.get("fingerprints", {}),
            "notes": found.get("notes", []),
        },
    )
