"""Tables and sentences of a model card, each a function of metrics.json. Used by ``hftune.hub.card``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hftune.config.data import LabeledData
from hftune.config.recipe import Recipe
from hftune.config.train import LOWER_IS_BETTER
from hftune.hub.markdown import inline
from hftune.runs.wording import baseline_name, baseline_notes, duration, number, score_name, was_left_out

MOST_LABELS = 60


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def score_table(metrics: Mapping[str, Any]) -> str:
    """The model, then what plain systems get, on every split; empty where nothing was scored."""
    systems = [("**this model**", metrics.get("splits", {}))]
    systems += [(inline(baseline_name(name)), splits) for name, splits in metrics.get("baselines", {}).items()]
    names = [name for name, value in _first(metrics.get("splits", {})).items() if _is_score(value)]
    if not names:
        return ""
    rows = [
        [f"{system}, {inline(split)}", *(number(scores.get(name)) for name in names)]
        for system, splits in systems
        for split, scores in splits.items()
        if not was_left_out(scores)
    ]
    return table(["", *(inline(score_name(name)) for name in names)], rows)


def label_table(per_class: Mapping[str, Mapping[str, Any]]) -> str:
    """Precision, recall and F1 of each label; empty for a task without labels."""
    if not per_class:
        return ""
    columns = list(_first(per_class))
    rows = [
        [inline(label), *(number(scores[column]) for column in columns)]
        for label, scores in list(per_class.items())[:MOST_LABELS]
    ]
    more = len(per_class) - MOST_LABELS
    left = f"\n\n… and {more} more labels." if more > 0 else ""
    return table(["label", *(inline(score_name(column)) for column in columns)], rows) + left


def data_table(data: Mapping[str, Any]) -> str:
    """Rows and fingerprint of each split."""
    prints = data.get("fingerprints", {})
    rows = [
        [inline(split), f"{count:,}", f"`{inline(prints.get(split, ''))}`" if prints.get(split) else "–"]
        for split, count in data.get("rows", {}).items()
    ]
    return table(["split", "rows", "fingerprint"], rows)


def parameters(counts: Mapping[str, Any]) -> str:
    """How many weights moved."""
    if not counts:
        return "all parameters trained"
    formula = f" = {inline(counts['formula'])}" if counts.get("formula") else ""
    return f"{counts['trainable']:,} of {counts['total']:,} parameters trained{formula}"


def speed(facts: Mapping[str, Any]) -> str:
    """How long it took."""
    if "train_seconds" not in facts:
        return ""
    rate = facts.get("examples_per_second")
    alone = f" ({rate:,.0f} examples/s in updates alone)" if rate else ""
    return f"Trained in {duration(facts['train_seconds'])} with evaluations and saves{alone}"


def remarks(metrics: Mapping[str, Any]) -> list[str]:
    """Whether the model beats the plain systems, in words: a table alone is read too kindly."""
    found = [f"{inline(note)}." for note in baseline_notes(metrics.get("baselines", {}))]
    for split, scores in metrics.get("splits", {}).items():
        name = next((name for name in ("accuracy", "exact_match", "perplexity") if name in scores), None)
        rivals = {
            baseline: splits[split][name]
            for baseline, splits in metrics.get("baselines", {}).items()
            if name is not None and name in splits.get(split, {})
        }
        if name is None or not rivals:
            continue
        sign = -1 if name in LOWER_IS_BETTER else 1
        best = max(rivals, key=lambda baseline: sign * rivals[baseline])
        gap = sign * (scores[name] - rivals[best])
        verb = "better than" if gap > 0 else "worse than" if gap < 0 else "no different from"
        by = f" by {number(abs(gap))}" if gap else ""
        found.append(
            f"On {inline(split)} the model is {verb} the best of them, the {inline(baseline_name(best))}, "
            f"in {inline(score_name(name))}{by}."
        )
    return found


def limits(metrics: Mapping[str, Any], recipe: Recipe, *, pairs: bool) -> list[str]:
    """What a user of the model should not expect; pairs: whether it reads two texts a row."""
    found = []
    if metrics.get("collapsed"):
        reason = f" ({inline(metrics['collapse_reason'])})" if metrics.get("collapse_reason") else ""
        found.append(f"It has collapsed to (nearly) one answer{reason}: its scores are those of a constant.")
    calibration = metrics.get("calibration") or {}
    split = next((name for name in ("test", "validation") if name in calibration), None)
    if split is not None:
        facts, temperature = calibration[split], calibration["temperature"]
        tendency = (
            "too sure of itself" if temperature > 1.05 else "too unsure" if temperature < 0.95 else "well calibrated"
        )
        found.append(
            f"Its probabilities are {tendency}: the expected calibration error on {split} is {number(facts['ece'])}, "
            f"and {number(facts['ece_scaled'])} when the logits are divided by {number(temperature)}, "
            f"which was fitted on {inline(calibration['fitted_on'])}."
        )
    never = [
        group
        for of_split in metrics.get("knowledge", {}).values()
        for group in of_split["groups"]
        if group["seen_in_pretraining"] is False and group["seen_in_finetuning"] is False
    ]
    if "knowledge" in metrics:
        found.append("It answers every question, also those whose answer it can't know.")
    if never:
        rows = sum(group["rows"] for group in never)
        sure = sum(group["confidence"] * group["rows"] for group in never) / rows
        found.append(
            f"Asked about {rows} names that it has never met, it is {number(sure)} sure of its answers on average; "
            "`hftune predict --min-confidence` holds back what it is not sure of."
        )
    if metrics.get("labels"):
        found.append("It always answers with one of its labels, also where none of them fits.")
    if isinstance(recipe.data, LabeledData):
        whole = "the two texts of a pair together" if pairs else "each text"
        found.append(f"It reads at most {recipe.data.max_seq_length} tokens of {whole}; what is over is cut off.")
    found.append(
        f"The scores come from one run with seed {metrics.get('seed', recipe.train.seed)}; other seeds give others."
    )
    found.append("Texts unlike the training data, in topic, style or language, were not tested.")
    return found


def _first(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(iter(mapping.values()), {})


def _is_score(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
