"""The mistakes the model was most sure of, with their text: where label noise and blind spots show first."""

from __future__ import annotations

from typing import Any

from hftune.runs.facts import RunFacts
from hftune.runs.page import Section

SHOWN = 12
OPENING = 420
MOST_TEXT = 6000


def mistakes(facts: RunFacts) -> Section | None:
    """Most confident first; in the order of the data where the task has no probabilities."""
    # Reading test mistakes and then changing something is how a test set stops being one.
    split = "validation" if facts.answered("validation") else facts.main_split
    rows = facts.answered(split) if split else []
    if split is None or not rows:
        return None
    wrong = [row for row in rows if row["label"] != row["gold"]]
    sure = all(_confidence(row) is not None for row in wrong)
    if sure:
        wrong = sorted(wrong, key=lambda row: -(_confidence(row) or 0.0))
    chosen = [_shown(row) for row in wrong[:SHOWN]]
    lead = f"{len(wrong):,} of {len(rows):,} rows of {split} are answered wrongly."
    if sure and len(wrong) > 1:
        lead += " The ones the model was surest of come first, with the probability it gave to each answer."
    if split == "validation" and "test" in facts.scored:
        lead += " Test mistakes are not shown, so that test stays unseen; they are in predictions/test.jsonl."
    return Section(
        id="mistakes",
        title="Confident mistakes" if sure else "Mistakes",
        template="mistakes.html.j2",
        lead=lead,
        values={"rows": chosen, "more": len(wrong) - len(chosen)},
    )


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    texts = [str(row[name]) for name in ("text", "text_pair") if name in row]
    probabilities = row.get("probabilities", {})
    return {
        "id": row["id"],
        "gold": str(row["gold"]),
        "label": str(row["label"]),
        "confidence": _confidence(row),
        "gold_probability": probabilities.get(row["gold"], row.get("gold_probability")),
        "texts": [_opening(text) for text in texts],
    }


def _confidence(row: dict[str, Any]) -> float | None:
    """Probability of the label or answer that was given; None where the task has none."""
    found = row["probabilities"][row["label"]] if "probabilities" in row else row.get("confidence")
    return None if found is None else float(found)


def _opening(text: str) -> dict[str, Any]:
    """The beginning that is read at once, the rest that can be opened, and what not even that shows."""
    if len(text) <= OPENING:
        return {"opening": text, "rest": "", "left_out": 0, "length": len(text)}
    cut = text.rfind(" ", OPENING - 60, OPENING)
    cut = cut if cut > 0 else OPENING
    return {
        "opening": text[:cut],
        "rest": text[cut:MOST_TEXT],
        "left_out": max(0, len(text) - MOST_TEXT),
        "length": len(text),
    }
