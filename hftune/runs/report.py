"""The report of a run: one HTML page and its figures, a pure function of the run directory.

The sections about the training are here: curves, cost, data, command, environment.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hftune.evaluation.scores import LOWER_IS_BETTER
from hftune.runs.directory import RunDir
from hftune.runs.figures import BLUE, GREEN, ORANGE, Line, Reference, line_chart, thinned
from hftune.runs.formatting import REFERENCES, baseline_name, duration, number, percent, score_name, size
from hftune.runs.page import Banner, HtmlPage, PageSection, Picture
from hftune.runs.report_results import calibration, confusion, knowledge, labels, lengths, mistakes, samples, scores
from hftune.runs.run_record import RunRecord

MOST_EVALUATIONS = 40
# The two parts of a joint loss in history.jsonl.
CLASSIFICATION, MASKED = "classification_loss", "mlm_loss"


def write_report(run: RunDir, output: Path | None = None) -> Path:
    """Write the page of a run.

    Args:
        run: The run, finished or not.
        output: Another path of the page; report.html and plots/ in the run directory then stay as they are.

    Returns:
        The path of the page.
    """
    page = report_page(run)
    return page.write(run.report, run.plots) if output is None else page.write(output)


def report_page(run: RunDir) -> HtmlPage:
    """The page of a run, with the sections that it has data for."""
    record = RunRecord.read(run)
    return HtmlPage(
        title=record.name,
        kind="Run report",
        subtitle=record.subtitle,
        sections=[section for build in SECTIONS if (section := build(record)) is not None],
        banners=_banners(record),
        source="the files of the run directory",
    )


def _banners(record: RunRecord) -> list[Banner]:
    """Warnings above all numbers, the most serious first."""
    metrics = record.metrics
    if not metrics:
        text = "There are no scores yet: the page shows training so far."
        return [Banner("This run is not finished.", text, alarm=True)]
    found = []
    if metrics.get("verified") is not True:
        text = (
            "The saved model was not reloaded in a fresh process with the same outputs. The scores may not be those "
            "of the weights in model/: do not use or publish it."
        )
        found.append(Banner("Not verified.", text, alarm=True))
    if metrics.get("collapsed"):
        default = "its predictions are (nearly) all one label, or its score is that of the split's majority label"
        text = f"The model is no better than a constant answer: {metrics.get('collapse_reason') or default}."
        found.append(Banner("Collapsed.", text, alarm=True))
    found += [Banner("Check the data.", f"{text}.") for text in metrics.get("data", {}).get("warnings", [])]
    found_verdict = verdict(metrics)
    if found_verdict is not None and found_verdict.beaten:
        found.append(Banner(found_verdict.summary, found_verdict.scores))
    return found


class Verdict(NamedTuple):
    """A model next to its baselines, in a sentence."""

    beaten: bool
    """Whether a baseline scores at least as high."""
    summary: str
    scores: str
    """The scores that the summary is about."""


def verdict(metrics: Mapping[str, Any]) -> Verdict | None:
    """Whether a model is better than its baselines, from metrics.json; None if there is nothing to compare."""
    record = RunRecord("", "", {}, dict(metrics), {}, [], {}, 0)
    split, metric = record.main_split, record.main_metric
    if split is None or metric is None or (score := record.scored[split].get(metric)) is None:
        return None
    baselines = {name: value for name, value in record.baseline_scores(split, metric) if name not in REFERENCES}
    if not baselines:
        return None
    # A baseline that scores the same counts too: a model that learned nothing often equals the majority label.
    sign = -1 if metric in LOWER_IS_BETTER else 1
    better = {name: value for name, value in baselines.items() if sign * value >= sign * score}
    values = ", ".join(f"{baseline_name(name)} {number(value)}" for name, value in (better or baselines).items())
    summary = "A baseline does as well or better." if better else "The model scores better than every baseline."
    return Verdict(bool(better), summary, f"On {split}, {record.main_metric_name} is {number(score)}; {values}.")


# ---- Sections about the training ----


def curves(record: RunRecord) -> PageSection | None:
    """Learning curves, with the evaluations as a table."""
    pictures = tuple(one for one in (_loss(record), _masked_loss(record), _score(record)) if one is not None)
    if not pictures:
        return None
    lead = ""
    if record.selected_step is not None:
        score = record.metrics["selection"].get("score")
        lead = f"The checkpoint of step {record.selected_step:,.0f} was kept"
        lead += f": best validation {record.main_metric_name}, {number(score)}." if score is not None else "."
    values = {"evaluations": _evaluations(record), "selected": record.selected_step}
    return PageSection("training", "Training", "curves", lead, pictures, values)


def _loss(record: RunRecord) -> Picture | None:
    # Of a joint loss the part that validation has too.
    name = CLASSIFICATION if any(CLASSIFICATION in row for row in record.history) else "loss"
    train, validation = record.logged(name), record.evaluations("loss")
    lines, parts = [], []
    if train:
        lines.append(Line("training", *thinned([row["step"] for row in train], [row[name] for row in train]), ORANGE))
        parts.append(f"Training loss goes from {number(train[0][name])} to {number(train[-1][name])}")
    if validation:
        lines.append(_validation(validation, "loss"))
        lowest = min(validation, key=lambda row: row["loss"])
        parts.append(
            f"validation loss from {number(validation[0]['loss'])} to {number(validation[-1]['loss'])}, with its "
            f"lowest value, {number(lowest['loss'])}, at step {lowest['step']:,}"
        )
    if not lines:
        return None
    figure = line_chart(lines, x_label="steps", y_label="loss (nats)", mark=_kept(record))
    caption = "Loss of the classifier" if name == CLASSIFICATION else "Loss"
    return Picture("loss", figure, alt=f"Line chart. {'; '.join(parts)}.", caption=caption)


def _masked_loss(record: RunRecord) -> Picture | None:
    rows = record.logged(MASKED)
    if not rows:
        return None
    steps, values = [row["step"] for row in rows], [row[MASKED] for row in rows]
    line = Line("masked language model", *thinned(steps, values), GREEN)
    figure = line_chart([line], x_label="steps", y_label="loss (nats per masked token)")
    alt = f"Line chart. The loss on masked tokens goes from {number(values[0])} to {number(values[-1])}."
    return Picture("mlm-loss", figure, alt=alt, caption="Loss of the masked language model, on unlabeled text")


def _validation(rows: list[dict[str, Any]], key: str) -> Line:
    return Line("validation", [row["step"] for row in rows], [row[key] for row in rows], BLUE, marker="o")


def _kept(record: RunRecord) -> tuple[float, str] | None:
    return None if record.selected_step is None else (record.selected_step, "kept")


def _score(record: RunRecord) -> Picture | None:
    metric = record.main_metric
    if metric == "loss" and any("bits_per_byte" in row for row in record.history):
        metric = "perplexity"  # of a language model, whose loss is its logarithm
    if metric is None or metric == "loss":
        return None
    rows = record.evaluations(metric)
    if not rows:
        return None
    references = [Reference(baseline_name(name), value) for name, value in record.baseline_scores("validation", metric)]
    figure = line_chart(
        [_validation(rows, metric)],
        x_label="steps",
        y_label=metric.replace("_", " "),
        references=references,
        mark=_kept(record),
    )
    best = (min if metric in LOWER_IS_BETTER else max)(rows, key=lambda row: row[metric])
    others = "".join(f"; the {one.label} is at {number(one.y)}" for one in references)
    name = score_name(metric)
    alt = (
        f"Line chart. Validation {name} goes from {number(rows[0][metric])} to {number(rows[-1][metric])}, "
        f"at best {number(best[metric])} at step {best['step']:,}{others}."
    )
    return Picture("score", figure, alt=alt, caption=f"Validation {name}")


def _evaluations(record: RunRecord) -> dict[str, Any]:
    rows = record.evaluations()
    first = rows[0] if rows else {}
    hidden = ("step", "epoch", "split", "seconds")
    names = [name for name, value in first.items() if name not in hidden and isinstance(value, int | float)]
    # Of a long run evenly spaced rows are shown; history.jsonl has them all.
    step = max(1, -(-len(rows) // MOST_EVALUATIONS))
    kept = [row for place, row in enumerate(rows) if place % step == 0 or row["step"] == record.selected_step]
    return {"names": names, "rows": kept, "left_out": len(rows) - len(kept)}


def cost(record: RunRecord) -> PageSection | None:
    """Parameters, time, speed and size."""
    parameters, speed = record.metrics.get("parameters", {}), dict(record.metrics.get("speed", {}))
    pairs: list[tuple[str, str]] = []
    if parameters.get("total"):
        share = percent(parameters["trainable"] / parameters["total"])
        pairs.append(("Trainable parameters", f"{parameters['trainable']:,} of {parameters['total']:,} ({share})"))
    if parameters.get("formula"):
        pairs.append(("Trainable, as a formula", str(parameters["formula"])))
    if pooling := record.metrics.get("pooling"):
        pairs.append(("Pooling", f"{pooling['kind']} ({pooling['source']})"))
    formats = {
        "train_seconds": ("Training time, with evaluations and saves", duration),
        "feature_seconds": ("Precomputing features, before training", duration),
        "examples_per_second": ("Speed of training steps alone", "{:,.0f} examples per second".format),
        "tokens_per_second": ("Token speed", "{:,.0f} tokens per second".format),
        "mfu": ("Model FLOPs utilization (MFU)", percent),
        "peak_memory_gb": ("Peak memory", "{:.2f} GB".format),
    }
    for key, (name, text) in formats.items():
        value = speed.pop(key, None)
        if value is not None:
            pairs.append((name, text(float(value))))
    for key, value in speed.items():
        if isinstance(value, int | float):
            pairs.append((key.replace("_", " ").capitalize(), number(value)))
    if record.model_bytes:
        pairs.append(("Saved model", size(record.model_bytes)))
    return PageSection("cost", "Cost", "pairs", values={"pairs": pairs}) if pairs else None


def data(record: RunRecord) -> PageSection | None:
    """Source, rows and fingerprints by split, and notes about the rows."""
    found = record.metrics.get("data")
    if not found:
        return None
    values = {name: found.get(name, {}) for name in ("rows", "fingerprints", "notes")}
    return PageSection("data", "Data", "data", f"Source: {found['source']}", values=values)


def reproduce(record: RunRecord) -> PageSection:
    """The command of the run, a command that runs the resolved recipe again, and that recipe."""
    lead = "The recipe has every setting; the same recipe, versions and machine give the same weights."
    values = {
        "given": record.environment.get("command", ""),
        "recipe": record.recipe_text,
        "again": f"hftune train {shlex.quote(f'runs/{record.name}/recipe.yaml')}",
    }
    return PageSection("reproduce", "Reproduce", "reproduce", lead, values=values)


def environment(record: RunRecord) -> PageSection | None:
    """Machine and versions."""
    found = record.environment
    if not found:
        return None
    cores, git = found.get("cores") or {}, found.get("git")
    devices = [
        f"{one['name']} ({one['memory_gb']} GB)" if one.get("memory_gb") else one["name"]
        for one in found.get("devices", [])
    ]
    changed = {True: " with changes", False: "", None: " (not checked for changes)"}
    machine = [
        ("System", found.get("platform")),
        ("Processor", found.get("cpu")),
        ("Cores", f"{cores['usable']} of {cores['total']}" if cores else None),
        ("Memory", f"{found['memory_gb']} GB" if found.get("memory_gb") else None),
        ("Accelerators", ", ".join(devices) or "none"),
        ("Commit", f"{git['commit'][:12]}{changed.get(git.get('changed'), '')}" if git else None),
    ]
    software = [("hftune", found.get("hftune")), ("Python", found.get("python")), *found.get("libraries", {}).items()]
    values = {
        "machine": [(name, value) for name, value in machine if value],
        "software": [(name, value) for name, value in software if value],
    }
    return PageSection("environment", "Environment", "environment", values=values)


SECTIONS: tuple[Callable[[RunRecord], PageSection | None], ...] = (
    scores,
    curves,
    confusion,
    labels,
    calibration,
    knowledge,
    lengths,
    mistakes,
    samples,
    cost,
    data,
    reproduce,
    environment,
)
"""In the order of the page; those of results are in report_results."""
