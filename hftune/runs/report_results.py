"""Sections of a report about the results: scores, calibration, confusions, mistakes, answers and samples.

Each is a function of the run's record that returns None if the run has no such data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hftune.evaluation.scores import LOWER_IS_BETTER, SCORES
from hftune.runs import figures
from hftune.runs.formatting import baseline_name, baseline_notes, number, percent, was_left_out
from hftune.runs.page import PageSection, Picture
from hftune.runs.run_record import RunRecord

MOST_LABELS = 100
Z95 = 1.959963984540054
MOST_CONFUSIONS = 12
# Labels of the largest matrix that is drawn: one of 100,000 would take 80 GB, and no page could show it.
DRAWN_LABELS = 200
LENGTH_BANDS = 5
MOST_MISTAKES = 12
# Characters of a text that are shown at once, and after opening it.
OPENING, MOST_TEXT = 420, 6000
COVERAGES = (0.1, 0.25, 0.5, 0.75, 1.0)
# Answers of a split that are listed one by one.
MOST_ANSWERS = 500
# Evaluations whose samples are shown; history.jsonl has them all.
MOST_EVALUATIONS = 12
SEEN_IN = {"seen_in_pretraining": "pretraining", "seen_in_finetuning": "fine-tuning"}

Rows = list[dict[str, Any]]
Point = Mapping[str, float]


def wilson(share: float, rows: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of independent rows (https://en.wikipedia.org/wiki/Binomial_proportion_confidence_interval)."""
    assert rows > 0 and 0 <= share <= 1
    spread = Z95**2 / rows
    center = (share + spread / 2) / (1 + spread)
    half = Z95 / (1 + spread) * sqrt(share * (1 - share) / rows + spread / (4 * rows))
    # At 0 and 1 the exact ends are 0 and 1; rounding must not leave the share outside of its own interval.
    return max(0.0, min(share, center - half)), min(1.0, max(share, center + half))


def scores(record: RunRecord) -> PageSection | None:
    """The headline, and a table of model and baselines for each split."""
    split, metric = record.main_split, record.main_metric
    if split is None or metric is None:
        return None
    tables = [
        {"split": name, "rows": record.rows(name), "names": names, "systems": _systems(record, name, names)}
        for name, found in record.scored.items()
        if (names := [key for key, value in found.items() if isinstance(value, int | float)])
    ]
    headline = _headline(record, split, metric)
    lead = []
    if headline["baselines"]:
        lead.append("The baselines are scored on the same rows.")
    if headline["interval"]:
        lead.append(f"The interval allows for the {headline['rows']:,} rows alone: another seed changes the score too.")
    values = {
        "headline": headline,
        "tables": tables,
        "best": _best,
        "lower": LOWER_IS_BETTER,
        "notes": baseline_notes(record.baselines),
    }
    return PageSection("scores", "Scores", "scores", " ".join(lead), values=values)


def _headline(record: RunRecord, split: str, metric: str) -> dict[str, Any]:
    value = record.scored[split].get(metric)
    rows = record.rows(split)
    baselines = [{"name": baseline_name(name), "value": one} for name, one in record.baseline_scores(split, metric)]
    return {
        "split": split,
        "metric": metric,
        "value": value,
        "rows": rows,
        "interval": wilson(value, rows) if _is_share(record, metric) and value is not None and rows else None,
        "baselines": sorted(baselines, key=lambda one: _rank(metric, one["value"])),
        "doubt": bool(record.metrics.get("collapsed")) or record.metrics.get("verified") is not True,
        "on_scale": metric not in LOWER_IS_BETTER and value is not None and 0 <= value <= 1,
    }


def _is_share(record: RunRecord, metric: str) -> bool:
    """Whether a score is a share of rows, so that their number gives an interval; an accuracy of tokens is not."""
    score = SCORES.get(str(record.metrics.get("task")), {}).get(metric)
    return score is not None and score.is_mean and score.high == 1.0


def _systems(record: RunRecord, split: str, names: list[str]) -> list[dict[str, Any]]:
    model = {"name": "this model", "scores": [record.scored[split][name] for name in names], "model": True}
    baselines: list[dict[str, Any]] = [
        {"name": baseline_name(name), "scores": [splits[split].get(score) for score in names], "model": False}
        for name, splits in record.baselines.items()
        if split in splits and not was_left_out(splits[split])
    ]
    column = names.index(record.main_metric) if record.main_metric in names else 0
    # Strongest first, as in the headline; baselines without the score come last.
    baselines.sort(key=lambda one: _rank(names[column], one["scores"][column]))
    return [model, *baselines]


def _rank(name: str, value: float | None) -> float:
    if value is None:
        return float("inf")
    return value if name in LOWER_IS_BETTER else -value


def _best(name: str, column: int, systems: list[dict[str, Any]]) -> float | None:
    values = [one["scores"][column] for one in systems if one["scores"][column] is not None]
    return float(min(values, key=lambda value: _rank(name, value))) if len(values) > 1 else None


def labels(record: RunRecord) -> PageSection | None:
    """Precision, recall and F1 of each label; of the weakest, if there are many."""
    split = record.main_split
    per_class = record.scored[split].get("per_class") if split else None
    if not per_class:
        return None
    shown = per_class
    if len(per_class) > MOST_LABELS:
        weak = sorted(per_class, key=lambda label: per_class[label]["f1"])[:MOST_LABELS]
        shown = {label: per_class[label] for label in weak}
    weakest, strongest = (pick(per_class, key=lambda label: per_class[label]["f1"]) for pick in (min, max))
    best, worst = (number(per_class[label]["f1"]) for label in (strongest, weakest))
    lead = f"“{strongest}” has the highest F1 ({best}), “{weakest}” the lowest ({worst})."
    values = {"per_class": shown, "split": split, "more": len(per_class) - len(shown)}
    return PageSection("labels", "By label", "labels", lead, values=values)


def calibration(record: RunRecord) -> PageSection | None:
    """Is a model that predicts with probability 0.8 right four times in five, before and after temperature scaling?"""
    report, split = record.metrics.get("calibration"), record.main_split
    if not report or split not in report or not report[split]["bins"]:
        return None
    found, temperature = report[split], report["temperature"]
    curves = {"as trained": found["bins"]}
    lead = f"Expected calibration error on {split}: {number(found['ece'])} as trained"
    scaled = ""
    if temperature is None:
        lead += "; without scores on validation no temperature was fitted."
    else:
        curves["scaled"] = found["bins_scaled"]
        lead += f", {number(found['ece_scaled'])} after dividing the logits by {number(temperature)}, "
        lead += f"which was fitted on {report['fitted_on']}."
        scaled = f", after scaling {number(found['ece_scaled'])}"
        if abs(temperature - 1) > 0.05:
            lead += f" The model as trained is {'over' if temperature > 1 else 'under'}-confident."
    picture = Picture(
        "reliability",
        figures.reliability(curves),
        alt=f"Reliability diagram: accuracy against confidence on {split}. As trained the gap to the ideal diagonal is "
        f"{number(found['ece'])} on average{scaled}.",
        caption="Reliability: the model is over-confident below the dashed line",
    )
    values = {"curves": curves, "split": split}
    return PageSection("calibration", "Calibration", "calibration", lead, (picture,), values)


def confusion(record: RunRecord) -> PageSection | None:
    """The confusion matrix: a table that can be read cell by cell, or a picture if there are many labels."""
    split = record.main_split
    rows = record.answered(split) if split else []
    if split is None or not rows or not record.labels:
        return None
    confused = _most_confused(rows, record.labels)
    readable, drawn = (len(record.labels) <= most for most in (figures.READABLE_LABELS, DRAWN_LABELS))
    counts = _count(rows, record.labels) if drawn else np.zeros((0, 0), dtype=np.int64)
    alt = (
        f"Confusion matrix of {len(record.labels)} labels on {len(rows):,} rows of {split}: "
        f"{percent(counts.trace() / len(rows))} are on the diagonal."
    )
    picture = Picture("confusion", figures.confusion(counts, record.labels), alt, "Confusion matrix") if drawn else None
    lead = f"On {split}, every prediction is right."
    if confused:
        worst = confused[0]
        lead = (
            f"On {split}, the most frequent confusion is “{worst['gold']}” predicted as “{worst['label']}”: "
            f"{worst['count']:,} of {worst['of']:,} rows."
        )
    values = {
        "labels": record.labels,
        "matrix": _cells(counts) if readable else [],
        "readable": readable,
        "confused": confused,
        "split": split,
    }
    return PageSection("confusion", "Confusion", "confusion", lead, (picture,) if picture else (), values)


def _count(rows: Rows, labels: list[str]) -> NDArray[np.int64]:
    place = {label: index for index, label in enumerate(labels)}
    counts = np.zeros((len(labels), len(labels)), dtype=np.int64)
    for row in rows:
        counts[place[str(row["gold"])], place[str(row["label"])]] += 1
    return counts


def _cells(counts: NDArray[np.int64]) -> list[list[dict[str, Any]]]:
    def cell(row: int, column: int) -> dict[str, Any]:
        count, total = int(counts[row, column]), int(counts[row].sum())
        return {"count": count, "share": round(100 * count / total) if total else 0, "right": row == column}

    return [[cell(row, column) for column in range(len(counts))] for row in range(len(counts))]


def _most_confused(rows: Rows, labels: list[str]) -> Rows:
    # Counted without a matrix of all pairs, which many labels make too large.
    place = {label: index for index, label in enumerate(labels)}
    of = Counter(str(row["gold"]) for row in rows)
    pairs = Counter((str(row["gold"]), str(row["label"])) for row in rows)
    wrong = [(gold, label) for gold, label in pairs if gold != label]
    wrong.sort(key=lambda pair: (-pairs[pair], place[pair[0]], place[pair[1]]))
    return [
        {"gold": gold, "label": label, "count": pairs[gold, label], "of": of[gold]}
        for gold, label in wrong[:MOST_CONFUSIONS]
    ]


def lengths(record: RunRecord) -> PageSection | None:
    """Accuracy over bands of text length that hold about as many rows each."""
    split = record.main_split
    rows = record.answered(split) if split else []
    if not rows or not record.labels:
        return None
    unit, bands = "words", by_length(rows, lambda text: len(text.split()))
    if len(bands) < 2:  # scripts without spaces, where every text is one word
        unit, bands = "characters", by_length(rows, len)
    if len(bands) < 2:
        return None
    overall = sum(row["label"] == row["gold"] for row in rows) / len(rows)
    lowest, highest = (pick(bands, key=lambda one: one["accuracy"]) for pick in (min, max))
    picture = Picture(
        "length",
        figures.score_by_length(bands, overall, unit),
        alt=f"Accuracy by length of the text in {unit}, with 95 % intervals: from {number(lowest['accuracy'])} "
        f"at {lowest['range']} to {number(highest['accuracy'])} at {highest['range']}.",
        caption="Accuracy by length",
    )
    apart = [one["range"] for one in bands if not one["low"] <= overall <= one["high"]]
    lead = (
        f"Texts of {' and '.join(apart)} {unit} differ significantly from the overall accuracy, {number(overall)}."
        if apart
        else f"No band differs significantly from the overall accuracy, {number(overall)}."
    )
    values = {"slices": bands, "unit": unit, "split": split}
    return PageSection("lengths", "By length", "lengths", lead, (picture,), values)


def by_length(rows: Rows, measure: Callable[[str], int]) -> Rows:
    """Bands of length with as many rows each as ties allow: range, rows, accuracy and its 95 % interval."""
    sizes = np.asarray([measure(str(row["text"])) + measure(str(row.get("text_pair", ""))) for row in rows])
    right = np.asarray([row["label"] == row["gold"] for row in rows])
    # method="lower" gives lengths that occur. Many rows of one length make some of them equal: then bands are fewer.
    starts = np.unique(np.quantile(sizes, np.arange(LENGTH_BANDS) / LENGTH_BANDS, method="lower"))
    edges = np.append(starts, sizes.max() + 1).tolist()
    bands = []
    for low, high in pairwise(edges):
        inside = right[(sizes >= low) & (sizes < high)]
        accuracy = float(inside.mean())
        below, above = wilson(accuracy, len(inside))
        name = f"{low:,}–{high - 1:,}" if high - 1 > low else f"{low:,}"
        bands.append({"range": name, "rows": len(inside), "accuracy": accuracy, "low": below, "high": above})
    return bands


def mistakes(record: RunRecord) -> PageSection | None:
    """Wrong predictions with their text, most confident first: where label noise and systematic errors show first."""
    # A test set whose mistakes were read before the next change is no longer a test set.
    split = "validation" if record.answered("validation") else record.main_split
    rows = record.answered(split) if split else []
    if split is None or not rows:
        return None
    wrong = [row for row in rows if row["label"] != row["gold"]]
    ranked = all(_confidence(row) is not None for row in wrong)
    if ranked:
        wrong = sorted(wrong, key=lambda row: -(_confidence(row) or 0.0))
    lead = f"{len(wrong):,} of {len(rows):,} predictions on {split} are wrong."
    if ranked and len(wrong) > 1:
        lead += " The most confident ones come first, with the probability of each answer."
    if split == "validation" and "test" in record.scored:
        lead += " Test mistakes are not shown, so that test stays unseen; they are in predictions/test.jsonl."
    values = {"rows": [_shown(row) for row in wrong[:MOST_MISTAKES]], "more": len(wrong) - MOST_MISTAKES}
    return PageSection("mistakes", "Confident mistakes" if ranked else "Mistakes", "mistakes", lead, values=values)


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": row["id"],
        "gold": str(row["gold"]),
        "label": str(row["label"]),
        "confidence": _confidence(row),
        "gold_probability": row.get("probabilities", {}).get(row["gold"], row.get("gold_probability")),
        "texts": [_opening(str(row[name])) for name in ("text", "text_pair") if name in row],
    }


def _confidence(row: dict[str, Any]) -> float | None:
    found = row["probabilities"][row["label"]] if "probabilities" in row else row.get("confidence")
    return None if found is None else float(found)


def _opening(text: str) -> dict[str, Any]:
    """The beginning that is shown, the rest that can be opened, and the number of characters beyond that."""
    cut = len(text)
    if cut > OPENING:
        space = text.rfind(" ", OPENING - 60, OPENING)
        cut = space if space > 0 else OPENING
    return {
        "opening": text[:cut],
        "rest": text[cut:MOST_TEXT],
        "left_out": max(0, len(text) - MOST_TEXT),
        "length": len(text),
    }


def knowledge(record: RunRecord) -> PageSection | None:
    """Whether confident answers are right, and how confident the model is about names it never saw."""
    found: dict[str, Any] = record.metrics.get("knowledge") or {}
    if not found:
        return None
    splits = (record.main_split, "validation")
    split = next((name for name in splits if name and "risk_coverage" in found.get(name, {})), None)
    curve, bins = (found[split]["risk_coverage"], found[split]["bins"]) if split is not None else ([], [])
    # Answers are shown one by one for validation, and for a test split whose right answers are not known.
    listed = ("validation",) if record.answered("test") else ("validation", "test")
    values = {
        "split": split,
        "points": [_at(curve, coverage) for coverage in COVERAGES] if curve else [],
        "bins": bins,
        "groups": {
            name: [{**one, "seen": _seen(one)} for one in of_split["groups"]] for name, of_split in found.items()
        },
        "answers": {name: answer_list(record.predictions[name]) for name in listed if name in record.predictions},
    }
    lead = _lead(record, [one for of_split in found.values() for one in of_split["groups"]], split, curve)
    pictures = _pictures(split, curve, bins) if split is not None else ()
    return PageSection("knowledge", "Knowledge or hallucination", "knowledge", lead, pictures, values)


def _lead(record: RunRecord, groups: Sequence[Mapping[str, Any]], split: str | None, curve: Sequence[Point]) -> str:
    parts = []
    if split is not None:
        half, whole = percent(_at(curve, 0.5)["accuracy"]), percent(_at(curve, 1.0)["accuracy"])
        parts.append(f"Of all answers on {split}, {whole} are right; of the most confident half, {half}.")
    never = [one for one in groups if one["seen_in_pretraining"] is False and one["seen_in_finetuning"] is False]
    seen = [one for one in groups if one["seen_in_pretraining"]]
    if never and seen:
        parts.append(
            f"The mean confidence is {number(_mean_confidence(never))} for names that the model never saw, and "
            f"{number(_mean_confidence(seen))} for names in its pretraining corpus."
        )
    corpus = record.metrics.get("pretraining", {}).get("corpus")
    if corpus:
        parts.append("The model was not pretrained." if corpus == "none" else f"Pretrained on: {corpus}.")
    return " ".join(parts)


def _mean_confidence(groups: Sequence[Mapping[str, Any]]) -> float:
    return float(sum(one["confidence"] * one["rows"] for one in groups) / sum(one["rows"] for one in groups))


def _pictures(split: str, curve: Sequence[Point], bins: Sequence[Point]) -> tuple[Picture, ...]:
    first, half, whole = (number(_at(curve, coverage)["accuracy"]) for coverage in (0.0, 0.5, 1.0))
    return (
        Picture(
            "risk-coverage",
            figures.risk_coverage(curve),
            alt=f"Line chart: accuracy on {split} when only the most confident answers are given. {first} for the most "
            f"confident hundredth, {half} for the most confident half, {whole} for all.",
            caption="Accuracy when only the most confident answers are given",
        ),
        Picture(
            "confidence",
            figures.reliability({"as trained": bins}),
            alt=f"Reliability diagram: share of right answers against confidence on {split}, in {len(bins)} bins.",
            caption="Reliability: the model is over-confident below the dashed line",
        ),
    )


def _at(curve: Sequence[Point], coverage: float) -> Point:
    return min(curve, key=lambda point: abs(point["coverage"] - coverage))


def answer_list(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The answers of a split, most confident first."""
    shown = [
        {
            "question": row["text"],
            "answer": row["label"] if row.get("ended", True) else f"{row['label']} …",
            "gold": row.get("gold"),
            "right": None if row.get("gold") is None else row["label"].strip() == row["gold"].strip(),
            "confidence": row["confidence"],
            "seen": _seen(row),
        }
        for row in sorted(rows, key=lambda row: -row["confidence"])[:MOST_ANSWERS]
    ]
    return {"rows": shown, "more": len(rows) - len(shown), "known": any(one["gold"] is not None for one in shown)}


def _seen(row: Mapping[str, Any]) -> dict[str, str]:
    return {name: {None: "not known", True: "seen", False: "never seen"}[row[key]] for key, name in SEEN_IN.items()}


def samples(record: RunRecord) -> PageSection | None:
    """What a generative model generates: prompts and continuations."""
    found = record.metrics.get("samples")
    if not found:
        return None
    evaluations = [row for row in record.history if row.get("split") == "samples" and row.get("samples")]
    values = {"samples": found, "course": evaluations[:: max(1, -(-len(evaluations) // MOST_EVALUATIONS))]}
    return PageSection("samples", "Samples", "samples", "Generated by the saved model, not selected.", values=values)
