"""What a run, a group of seeds or a dry run looks like on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from hftune.cli.terminal import out, say, show_json, visible
from hftune.runs.wording import baseline_name, baseline_notes, was_left_out

if TYPE_CHECKING:
    from hftune.dryrun import Estimate
    from hftune.pipeline import RunResult

SHOWN = (
    "exact_match",
    "bits_per_byte",
    "perplexity",
    "word_perplexity",
    "accuracy",
    "f1_macro",
    "mcc",
    "ece",
    "aurc",
    "loss",
    "span_loss",
    "bits_per_character",
)

LARGE = 1e5
"""From here on digits behind the point, and most of those before it, say nothing."""


def print_run(result: RunResult) -> None:
    """Scores beside their baselines, then where everything lies."""
    metrics = result.metrics
    if not metrics:
        return  # not the process that writes
    out().print(score_table(metrics))
    for line in baseline_notes(metrics["baselines"]):
        say(line, style="dim")
    for table in knowledge_tables(metrics):
        out().print(table)
    parameters, speed = metrics["parameters"], metrics["speed"]
    formula = f" = {parameters['formula']}" if parameters.get("formula") else ""
    ahead = f" after {speed['ahead_seconds']:.0f} s of encoding" if "ahead_seconds" in speed else ""
    say(
        f"{parameters['trainable']:,} of {parameters['total']:,} parameters trained{formula}, "
        f"in {speed['train_seconds']:.0f} s with evaluations and saves{ahead} "
        f"({speed['examples_per_second']:,.0f} examples/s in updates alone); "
        f"best at step {metrics['selection']['step']}"
    )
    say(f"model   {result.run.model}")
    say(f"report  {result.run.report}")


def score_table(metrics: Mapping[str, Any]) -> Table:
    """One row a system and split: the model, then what simple systems get."""
    plain = [(baseline_name(name), splits) for name, splits in metrics["baselines"].items()]
    systems = [("model", metrics["splits"]), *plain]
    columns = [name for name in SHOWN if any(name in scores for _, splits in systems for scores in splits.values())]
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("split")
    for name in columns:
        table.add_column(name.replace("_", "-"), justify="right")
    for system, splits in systems:
        for split, scores in splits.items():
            if was_left_out(scores):
                continue
            cells = [_figure(scores[name]) if name in scores else "" for name in columns]
            table.add_row(system, split, *cells, style="bold" if system == "model" else "dim")
    return table


def knowledge_tables(metrics: Mapping[str, Any]) -> list[Table]:
    """For answers to questions: how often right and how sure, by where the name was seen; one table a split."""
    tables = []
    for split, found in metrics.get("knowledge", {}).items():
        table = Table(box=None, pad_edge=False, title=f"{split}, by where the name was seen", title_justify="left")
        for name in ("in pretraining", "in fine-tuning", "questions", "exact-match", "confidence"):
            table.add_column(name, justify="left" if name.startswith("in ") else "right")
        for group in found["groups"]:
            seen = [_yes_or_no(group[key]) for key in ("seen_in_pretraining", "seen_in_finetuning")]
            match = "" if group["exact_match"] is None else f"{group['exact_match']:.4f}"
            table.add_row(*seen, f"{group['rows']:,}", match, f"{group['confidence']:.4f}")
        tables.append(table)
    return tables


def _figure(value: float) -> str:
    """A score with four digits behind the point; a large one, as perplexities of words can be, in short."""
    return f"{value:.4f}" if abs(value) < LARGE else f"{value:.3g}"


def _yes_or_no(seen: bool | None) -> str:
    return "not known" if seen is None else "yes" if seen else "no"


def print_group(group: Path, summary: Mapping[str, Any], results: Sequence[RunResult], as_json: bool) -> None:
    """Mean ± std over the seeds."""
    if not summary:
        return  # not the process that writes
    if as_json:
        show_json({"group": str(group), **summary})
        return
    table = Table(box=None, pad_edge=False)
    for name in ("split", "score", "mean", "std", "seeds"):
        table.add_column(name, justify="left" if name in ("split", "score") else "right")
    for split, scores in summary["splits"].items():
        for name in SHOWN:
            if name in scores:
                spread = scores[name]
                std = "" if spread["std"] is None else f"± {_figure(spread['std'])}"
                table.add_row(split, name.replace("_", "-"), _figure(spread["mean"]), std, str(len(results)))
    for system, splits in summary["baselines"].items():
        for split, scores in splits.items():
            first = next((name for name in SHOWN if name in scores), None)
            if first is not None:
                shown = f"{first.replace('_', '-')} of {baseline_name(system)}"
                table.add_row(split, shown, _figure(scores[first]), "", "", style="dim")
    out().print(table)
    if summary["collapsed"]:
        say(f"collapsed to one class: seeds {', '.join(map(str, summary['collapsed']))}", style="bold yellow")
    say(f"group   {group}")
    say(f"reports {group}/seed-*/report.html")


def print_dry_run(estimate: Estimate, as_json: bool) -> None:
    """What a run would cost; nothing was trained."""
    facts = estimate.as_dict()
    if as_json:
        show_json(facts)
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in facts.items():
        shown = (
            ", ".join(f"{part} {count:,}" for part, count in value.items()) if isinstance(value, dict) else str(value)
        )
        table.add_row(name.replace("_", " "), visible(f"{value:,}" if isinstance(value, int) else shown))
    out().print(table)
    say("dry run: nothing was trained, nothing was written")
