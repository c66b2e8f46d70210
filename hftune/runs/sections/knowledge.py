"""Knowing or making it up: accuracy when only the surest answers count, calibration, and names seen or never seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hftune.runs.facts import RunFacts
from hftune.runs.knowledge_plots import confidence_reliability, risk_coverage
from hftune.runs.page import Picture, Section
from hftune.runs.wording import number, percent

TOLD = (0.1, 0.25, 0.5, 0.75, 1.0)
"""Coverages that the table shows."""
MOST_ANSWERS = 500
"""Answers of a split that are listed one by one."""
SEEN_IN = {"seen_in_pretraining": "pretraining", "seen_in_finetuning": "fine-tuning"}


def knowledge(facts: RunFacts) -> Section | None:
    """What the confidence of answers is worth, and what a model says of names it never met."""
    found: dict[str, Any] = facts.metrics.get("knowledge") or {}
    if not found:
        return None
    split = next(
        (name for name in (facts.main_split, "validation") if name and "risk_coverage" in found.get(name, {})), None
    )
    curve = found[split]["risk_coverage"] if split is not None else []
    bins = found[split]["bins"] if split is not None else []
    return Section(
        id="knowledge",
        title="Knowing or making it up",
        template="knowledge.html.j2",
        lead=_lead(facts, found, split, curve),
        pictures=_pictures(split, curve, bins) if split is not None else (),
        values={
            "split": split,
            "points": _points(curve),
            "bins": bins,
            "groups": {name: [_group(one) for one in of_split["groups"]] for name, of_split in found.items()},
            "answers": {name: _answers(rows) for name, rows in _listed(facts).items()},
        },
    )


def _lead(facts: RunFacts, found: Mapping[str, Any], split: str | None, curve: Sequence[Mapping[str, float]]) -> str:
    told = []
    if split is not None:
        half, whole = _at(curve, 0.5), _at(curve, 1.0)
        told.append(
            f"Of all answers on {split}, {percent(whole['accuracy'])} are right; of the surest half, "
            f"{percent(half['accuracy'])} are."
        )
    never = [
        one
        for of_split in found.values()
        for one in of_split["groups"]
        if one["seen_in_pretraining"] is False and one["seen_in_finetuning"] is False
    ]
    read = [one for of_split in found.values() for one in of_split["groups"] if one["seen_in_pretraining"]]
    if never and read:
        told.append(
            f"About names it never met the model is {number(_mean_confidence(never))} sure on average, about those it "
            f"read of {number(_mean_confidence(read))}."
        )
    corpus = facts.metrics.get("pretraining", {}).get("corpus")
    if corpus:
        told.append("It was not pretrained." if corpus == "none" else f"Pretrained on: {corpus}.")
    return " ".join(told)


def _mean_confidence(groups: Sequence[Mapping[str, Any]]) -> float:
    return float(sum(one["confidence"] * one["rows"] for one in groups) / sum(one["rows"] for one in groups))


def _pictures(
    split: str, curve: Sequence[Mapping[str, float]], bins: Sequence[Mapping[str, float]]
) -> tuple[Picture, ...]:
    half, whole = _at(curve, 0.5), _at(curve, 1.0)
    return (
        Picture(
            "risk-coverage",
            risk_coverage(curve),
            alt=(
                f"Line chart: accuracy on {split} when only the surest answers are given. "
                f"{number(curve[0]['accuracy'])} for the surest hundredth, {number(half['accuracy'])} for the surest "
                f"half, {number(whole['accuracy'])} for all."
            ),
            caption="Accuracy when only the surest answers are given",
        ),
        Picture(
            "confidence",
            confidence_reliability(bins),
            alt=f"Reliability diagram: share of right answers against confidence on {split}, in {len(bins)} bins.",
            caption="Reliability: points below the dashed line are too sure of themselves",
        ),
    )


def _at(curve: Sequence[Mapping[str, float]], coverage: float) -> Mapping[str, float]:
    return min(curve, key=lambda point: abs(point["coverage"] - coverage))


def _points(curve: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    return [_at(curve, coverage) for coverage in TOLD] if curve else []


def _listed(facts: RunFacts) -> dict[str, list[dict[str, Any]]]:
    """Splits whose answers are shown one by one: validation, and a test split that tells nothing of what is right."""
    shown = ("validation",) if facts.answered("test") else ("validation", "test")
    return {name: facts.predictions[name] for name in shown if name in facts.predictions}


def _answers(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Surest first."""
    ranked = sorted(rows, key=lambda row: -row["confidence"])
    shown = [
        {
            "question": row["text"],
            "answer": row["label"] if row.get("ended", True) else f"{row['label']} …",
            "gold": row.get("gold"),
            "right": None if row.get("gold") is None else row["label"].strip() == row["gold"].strip(),
            "confidence": row["confidence"],
            "seen": _seen(row),
        }
        for row in ranked[:MOST_ANSWERS]
    ]
    return {"rows": shown, "more": len(rows) - len(shown), "known": any(one["gold"] is not None for one in shown)}


def _seen(row: Mapping[str, Any]) -> dict[str, str]:
    return {name: {None: "not known", True: "seen", False: "never seen"}[row[key]] for key, name in SEEN_IN.items()}


def _group(one: Mapping[str, Any]) -> dict[str, Any]:
    return {"seen": _seen(one), **{key: one[key] for key in ("rows", "exact_match", "confidence")}}
