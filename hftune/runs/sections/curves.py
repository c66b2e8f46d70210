"""The course of training: loss on train and validation, the validation score against the baselines."""

from __future__ import annotations

from typing import Any

from hftune.config.train import LOWER_IS_BETTER
from hftune.runs.facts import RunFacts
from hftune.runs.figures import Reference
from hftune.runs.page import Picture, Section
from hftune.runs.plots import MASKED, loss_curves, masked_curve, score_curve, trained_loss
from hftune.runs.wording import baseline_name, number, score_name

MOST_ROWS = 40


def curves(facts: RunFacts) -> Section | None:
    """Learning curves, with the evaluations behind them as a table."""
    pictures = tuple(picture for picture in (_loss(facts), _masked_loss(facts), _score(facts)) if picture is not None)
    if not pictures:
        return None
    return Section(
        id="training",
        title="Training",
        template="curves.html.j2",
        lead=_lead(facts),
        pictures=pictures,
        values={"evaluations": _evaluations(facts), "selected": facts.selected_step},
    )


def _loss(facts: RunFacts) -> Picture | None:
    figure = loss_curves(facts.history, facts.selected_step)
    if figure is None:
        return None
    name = trained_loss(facts.history)
    train = [row[name] for row in facts.history if row.get("split") is None and row.get(name) is not None]
    validation = [row for row in facts.history if row.get("split") == "validation" and row.get("loss") is not None]
    told = []
    if train:
        told.append(f"Training loss goes from {number(train[0])} to {number(train[-1])}")
    if validation:
        lowest = min(validation, key=lambda row: row["loss"])
        told.append(
            f"validation loss from {number(validation[0]['loss'])} to {number(validation[-1]['loss'])}, with its "
            "lowest value, "
            f"{number(lowest['loss'])}, at update {lowest['step']:,}"
        )
    caption = "Loss" if name == "loss" else "Loss of the classifier"
    return Picture("loss", figure, alt="Line chart. " + "; ".join(told) + ".", caption=caption)


def _masked_loss(facts: RunFacts) -> Picture | None:
    figure = masked_curve(facts.history)
    if figure is None:
        return None
    values = [row[MASKED] for row in facts.history if row.get(MASKED) is not None]
    alt = f"Line chart. The loss on masked tokens goes from {number(values[0])} to {number(values[-1])}."
    return Picture("mlm-loss", figure, alt=alt, caption="Loss of the masked language model, on unlabeled text")


def _score(facts: RunFacts) -> Picture | None:
    metric = facts.main_metric
    if metric == "loss" and any("bits_per_byte" in row for row in facts.history):
        metric = "perplexity"  # of a language model, whose loss is its logarithm
    if metric is None or metric == "loss":
        return None
    references = [
        Reference(baseline_name(name), float(of_split["validation"][metric]))
        for name, of_split in facts.baselines.items()
        if isinstance(of_split.get("validation", {}).get(metric), int | float)
    ]
    figure = score_curve(facts.history, metric, references, facts.selected_step)
    if figure is None:
        return None
    rows = [row for row in facts.history if row.get("split") == "validation" and row.get(metric) is not None]
    best = (min if metric in LOWER_IS_BETTER else max)(rows, key=lambda row: row[metric])
    others = "".join(f"; the {one.label} is at {number(one.y)}" for one in references)
    name = score_name(metric)
    alt = (
        f"Line chart. Dev {name} goes from {number(rows[0][metric])} to {number(rows[-1][metric])}, "
        f"at best {number(best[metric])} at update {best['step']:,}{others}."
    )
    return Picture("score", figure, alt=alt, caption=f"Dev {name}")


def _lead(facts: RunFacts) -> str:
    if facts.selected_step is None:
        return ""
    kept = f"The weights of update {facts.selected_step:,.0f} were kept"
    score = facts.metrics["selection"].get("score")
    because = f": their validation {facts.main_metric_name}, {number(score)}, was the best" if score is not None else ""
    return f"{kept}{because}."


def _evaluations(facts: RunFacts) -> dict[str, Any]:
    rows = [row for row in facts.history if row.get("split") == "validation"]
    names = [
        name
        for name in (rows[0] if rows else {})
        if name not in ("step", "epoch", "split", "seconds") and isinstance(rows[0][name], int | float)
    ]
    # A long run is told by evenly spaced rows; history.jsonl has them all.
    step = max(1, -(-len(rows) // MOST_ROWS))
    kept = [row for place, row in enumerate(rows) if place % step == 0 or row["step"] == facts.selected_step]
    return {"names": names, "rows": kept, "left_out": len(rows) - len(kept)}
