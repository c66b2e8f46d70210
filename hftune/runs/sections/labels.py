"""Slices by label: precision, recall and F1 of each, with how often it occurs."""

from __future__ import annotations

from hftune.runs.facts import RunFacts
from hftune.runs.page import Section
from hftune.runs.wording import number

MOST_LABELS = 100
"""Rows of the table; with more labels it has the weakest."""


def labels(facts: RunFacts) -> Section | None:
    """The table of labels."""
    split = facts.main_split
    per_class = facts.scored[split].get("per_class") if split else None
    if not split or not per_class:
        return None
    shown = per_class
    if len(per_class) > MOST_LABELS:
        weak = sorted(per_class, key=lambda label: per_class[label]["f1"])[:MOST_LABELS]
        shown = {label: per_class[label] for label in weak}
    weakest = min(per_class, key=lambda label: per_class[label]["f1"])
    strongest = max(per_class, key=lambda label: per_class[label]["f1"])
    return Section(
        id="labels",
        title="By label",
        template="labels.html.j2",
        lead=(
            f"“{strongest}” is found best (F1 {number(per_class[strongest]['f1'])}), "
            f"“{weakest}” worst ({number(per_class[weakest]['f1'])})."
        ),
        values={"per_class": shown, "split": split, "more": len(per_class) - len(shown)},
    )
