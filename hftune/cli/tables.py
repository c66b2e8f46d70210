"""Tables in the terminal: the scores of a run or a group of seeds, a dry run, a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table

from hftune.cli.terminal import out, say, show_json, table, visible
from hftune.runs.formatting import baseline_name, baseline_notes, duration, score_name, was_left_out

if TYPE_CHECKING:
    from hftune.pipeline.dry_run import Estimate
    from hftune.pipeline.request import ScoredModel
    from hftune.pipeline.train import GroupResult, RunResult
    from hftune.studies.compare import Compared

SHOWN = (
    "exact_match",
    "bits_per_byte",
    "perplexity",
    "word_perplexity",
    "accuracy",
    "balanced_accuracy",
    "top_k_accuracy",
    "top_3_accuracy",
    "top_5_accuracy",
    "precision",
    "precision_macro",
    "precision_weighted",
    "recall",
    "recall_macro",
    "recall_weighted",
    "f1",
    "f1_macro",
    "f1_micro",
    "f1_weighted",
    "mcc",
    "matthews_correlation",
    "quadratic_kappa",
    "roc_auc",
    "roc_auc_ovr",
    "mean_absolute_error",
    "ece",
    "aurc",
    "loss",
    "span_loss",
    "agreement",
    "sentence_agreement",
    "bits_per_character",
)
"""The scores that are shown, in this order."""

MOST_COLUMNS = 4
"""Up to this many settings, a table shows each difference per setting; otherwise the distinct values are listed."""
LARGE = 1e5
"""Larger scores, such as word perplexities, are shown with three digits."""


def print_result(result: RunResult | GroupResult | ScoredModel | Estimate, as_json: bool) -> None:
    """Print the result of a command that trains; only in the main process."""
    from hftune.pipeline.request import ScoredModel
    from hftune.pipeline.train import GroupResult, RunResult

    if isinstance(result, RunResult):
        if result.metrics:
            show_json({"run": str(result.run.path), **result.metrics}) if as_json else print_run(result)
    elif isinstance(result, GroupResult):
        if result.summary:
            show_json({"group": str(result.path), **result.summary}) if as_json else _print_group(result)
    elif isinstance(result, ScoredModel):
        show_json(result.as_dict()) if as_json else _print_scores(result)
    else:
        show_json(result.as_dict()) if as_json else _print_dry_run(result)


def _print_scores(result: ScoredModel) -> None:
    print_scores(result.as_dict())
    if result.path is not None:
        say(f"scores  {result.path}")


def print_run(result: RunResult) -> None:
    """Scores and baselines, then the paths of model and report."""
    metrics = result.metrics
    print_scores(metrics)
    print_knowledge(metrics)
    parameters, speed = metrics["parameters"], metrics["speed"]
    formula = f" = {parameters['formula']}" if parameters.get("formula") else ""
    ahead = f" after {speed['feature_seconds']:.0f} s of precomputing features" if "feature_seconds" in speed else ""
    say(
        f"{parameters['trainable']:,} of {parameters['total']:,} parameters trained{formula}, "
        f"in {speed['train_seconds']:.0f} s with evaluations and saves{ahead} "
        f"({speed['examples_per_second']:,.0f} examples/s in training steps); "
        f"best at step {metrics['selection']['step']}"
    )
    say(f"model   {result.run.model}")
    say(f"report  {result.run.report}")


def print_scores(metrics: Mapping[str, Any]) -> None:
    """One row per system and split, and notes on the baselines."""
    out().print(score_table(metrics))
    for line in baseline_notes(metrics["baselines"]):
        say(line, style="dim")


def score_table(metrics: Mapping[str, Any]) -> Table:
    """One row per system and split: the model, then its baselines."""
    plain = [(baseline_name(name), splits) for name, splits in metrics["baselines"].items()]
    systems = [("model", metrics["splits"]), *plain]
    columns = [name for name in SHOWN if any(name in scores for _, splits in systems for scores in splits.values())]
    shown = [name.replace("_", "-") for name in columns]
    made = table("", "split", *shown, right=shown)
    for system, splits in systems:
        for split, scores in splits.items():
            if was_left_out(scores):
                continue
            cells = [_number(scores[name]) if name in scores else "" for name in columns]
            made.add_row(system, split, *cells, style="bold" if system == "model" else "dim")
    return made


def print_knowledge(metrics: Mapping[str, Any]) -> None:
    """For question answering: exact match and confidence by where the name was seen, one table per split."""
    for split, found in metrics.get("knowledge", {}).items():
        counts = ("questions", "exact-match", "confidence")
        title = f"{split}, by where the name was seen"
        made = table("in pretraining", "in fine-tuning", *counts, right=counts, title=title)
        for group in found["groups"]:
            seen = [_yes_or_no(group[key]) for key in ("seen_in_pretraining", "seen_in_finetuning")]
            match = "" if group["exact_match"] is None else f"{group['exact_match']:.4f}"
            made.add_row(*seen, f"{group['rows']:,}", match, f"{group['confidence']:.4f}")
        out().print(made)


def _number(value: float) -> str:
    return f"{value:.4f}" if abs(value) < LARGE else f"{value:.3g}"


def _yes_or_no(seen: bool | None) -> str:
    return "not known" if seen is None else "yes" if seen else "no"


def _print_group(group: GroupResult) -> None:
    """Mean ± std over the seeds."""
    summary = group.summary
    numbers = ("mean", "std", "seeds")
    made = table("split", "score", *numbers, right=numbers)
    for split, scores in summary["splits"].items():
        for name in SHOWN:
            if name in scores:
                spread = scores[name]
                std = "" if spread["std"] is None else f"± {_number(spread['std'])}"
                made.add_row(split, name.replace("_", "-"), _number(spread["mean"]), std, str(len(group.runs)))
    for system, splits in summary["baselines"].items():
        for split, scores in splits.items():
            first = next((name for name in SHOWN if name in scores), None)
            if first is not None:
                shown = f"{first.replace('_', '-')} of {baseline_name(system)}"
                made.add_row(split, shown, _number(scores[first]), "", "", style="dim")
    out().print(made)
    if summary["collapsed"]:
        say(f"collapsed to one class: seeds {', '.join(map(str, summary['collapsed']))}", style="bold yellow")
    say(f"group   {group.path}")
    say(f"report  {group.path / 'report.html'}")


def _print_dry_run(estimate: Estimate) -> None:
    made = table(header=False)
    for name, value in estimate.as_dict().items():
        parts = value.items() if isinstance(value, dict) else ()
        shown = ", ".join(f"{part} {count:,}" for part, count in parts) or str(value)
        made.add_row(name.replace("_", " "), visible(f"{value:,}" if isinstance(value, int) else shown))
    out().print(made)
    say("dry run: nothing was trained, nothing was written")


WARNS = ("too few", "collapsed", "not the same items", "a baseline does")
"""Notes with these words are warnings."""


def print_comparison(compared: Compared) -> None:
    """The table, the verdicts of the paired tests, and notes on them."""
    from hftune.studies.tables import baseline_rows, interval_text, memory_text, score_text

    scores_of = [f"{split} {score_name(compared.metric)}" for split in compared.splits]
    numbers = (*scores_of, f"95 % interval ({compared.split})", "seeds", "trained", "time", "memory")
    made = table("setting", *numbers, right=numbers)
    made.columns[0].overflow = "fold"
    for row in compared.rows:
        made.add_row(
            visible(row.name) + (" (selected)" if row.selected else ""),
            *(score_text(row.scores.get(split)) for split in compared.splits),
            interval_text(row.scores.get(compared.split)),
            str(len(row.seeds)),
            f"{row.trainable:,}",
            duration(row.seconds),
            memory_text(row.memory),
            style="bold" if row.selected else "",
        )
    for name, scores in baseline_rows(compared):
        shown = (f"{scores[split]:.4f}" if split in scores else "" for split in compared.splits)
        made.add_row(visible(name), *shown, style="dim")
    out().print(made)
    _print_differences(compared)
    _print_pivot(compared)
    for pair in compared.pairs:
        say(pair.verdict)
    for line in compared.notes:
        say(f"note: {line}", style="yellow" if any(word in line for word in WARNS) else "dim")


def _print_differences(compared: Compared) -> None:
    """What differs between the settings: recipe keys, data and rows."""
    from hftune.studies.tables import difference_rows

    different = difference_rows(compared)
    if len(compared.rows) <= MOST_COLUMNS and different:
        made = table("what differs", *(visible(row.name) for row in compared.rows))
        for key, values in different:
            made.add_row(key, *map(visible, values))
        out().print(made)
    elif different:
        for key, values in different:
            say(f"differs  {key}: {visible(', '.join(dict.fromkeys(values)))}", style="dim")


def _print_pivot(compared: Compared) -> None:
    """Print one axis against the other, for a study with two axes."""
    from hftune.studies.tables import pivot_table, score_text

    pivot = pivot_table(compared)
    if pivot is None:
        return
    title = f"{compared.split} {score_name(compared.metric)} by {pivot.name}"
    columns = [visible(column) for column in pivot.columns]
    made = table("", *columns, right=columns, title=visible(title))
    made.columns[0].overflow = "fold"
    for name, scores in pivot.rows:
        made.add_row(visible(name), *map(score_text, scores))
    for name, found in pivot.baselines:
        made.add_row(name, *("–" if one is None else f"{one:.4f}" for one in found), style="dim")
    say("")
    out().print(made)
    say("")
