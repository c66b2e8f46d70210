"""What a generative model writes: prompts and continuations that its task kept under ``samples`` in metrics.json."""

from __future__ import annotations

from hftune.runs.facts import RunFacts
from hftune.runs.page import Section

MOST_ROWS = 12
"""Evaluations whose samples are shown; history.jsonl has them all."""


def samples(facts: RunFacts) -> Section | None:
    """Each sample as prompt and text."""
    found = facts.metrics.get("samples")
    if not found:
        return None
    course = [row for row in facts.history if row.get("split") == "samples" and row.get("samples")]
    step = max(1, -(-len(course) // MOST_ROWS))
    return Section(
        id="samples",
        title="Samples",
        template="samples.html.j2",
        lead="Written by the saved model, not chosen by hand.",
        values={"samples": found, "course": course[::step]},
    )
