"""``hftune evaluate``: score any run again, on any data.

hftune evaluate runs/a
hftune evaluate runs/a --data other.csv --split validation --json
hftune evaluate runs/births --data births --split validation
hftune evaluate runs/mnli --data nyu-mll/glue --set data.dataset_config_name=ax --output predictions.jsonl
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hftune.cli import options
from hftune.cli.outcome import knowledge_tables, score_table
from hftune.cli.terminal import note, out, say, show_json, visible
from hftune.errors import HftuneError
from hftune.runs.wording import baseline_notes

if TYPE_CHECKING:
    from hftune.outcomes import Scores

Split = Annotated[
    str | None,
    typer.Option("--split", metavar="NAME", help="train, validation or test; all for the rows of a single file."),
]
Predictions = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write every prediction here: as jsonl, or answers to questions one a line.",
    ),
]
DATA_SETTINGS = tuple(
    f"data.{key}"
    for key in (
        "dataset_config_name",
        "dataset_revision",
        "train_file",
        "validation_file",
        "test_file",
        "train_split_name",
        "validation_split_name",
        "test_split_name",
        "text_column_name",
        "text_pair_column_name",
        "label_column_name",
    )
)
"""Settings of the data that scoring uses; the others decide how a model is trained."""
DataSet = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="data.KEY=VALUE",
        help="A setting of --data, as data.dataset_config_name=cola; can be repeated.",
    ),
]
Metric = Annotated[
    list[str] | None, typer.Option("--metric", metavar="NAME", help="A further metric; can be repeated.")
]


def evaluate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run, a model folder, or a Hub id.")],
    data: options.Data = None,
    split: Split = None,
    text_column: options.TextColumn = None,
    pair_column: options.PairColumn = None,
    label_column: options.LabelColumn = None,
    sets: DataSet = None,
    metric: Metric = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Rows in one forward pass.")] = 64,
    output: Predictions = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = None,
    trust_base_code: options.TrustBaseCode = None,
    as_json: options.Json = False,
) -> None:
    """Score a run, a folder or a Hub model on one split of any data that suits it."""
    named = {
        "text_column_name": text_column,
        "text_pair_column_name": pair_column,
        "label_column_name": label_column,
    }
    columns = {name: column for name, column in named.items() if column is not None}
    if data is None and columns:
        raise HftuneError("columns were named but no data", hint="add --data NAME|PATH")
    columns |= _data_settings(data, sets or [])
    if output is not None and output.exists():
        raise HftuneError(f"{output} exists already", hint="name another file; nothing is overwritten")

    from hftune import inference
    from hftune.cli.watch import Watcher
    from hftune.config.consent import used_model
    from hftune.outcomes import Request
    from hftune.quiet import quiet_libraries

    quiet_libraries()
    settings = used_model(run, revision, trust_remote_code, trust_base_code)
    request = Request(run, settings, data, split, columns, tuple(metric or ()), batch_size, output is not None)
    with Watcher() as listener:
        scored = inference.evaluate(request, listener)
        if scored.collapsed:
            listener.warn(f"the predictions have collapsed: {scored.collapsed}")
    for path in _keep(scored, output):
        note(f"{len(scored.predictions)} predictions in {path}")
    result: dict[str, Any] = {
        "model": run,
        "data": scored.source,
        "splits": {scored.split: scored.scores} if scored.scores else {},
        "baselines": {name: {scored.split: scores} for name, scores in scored.baselines.items()},
        "collapsed": scored.collapsed is not None,
        **scored.extras,
    }
    if as_json:
        show_json(result)
        return
    if scored.scores:
        out().print(score_table(result))
        for line in baseline_notes(result["baselines"]):
            say(line, style="dim")
    else:
        lacking = "labels" if scored.lines is None else "answers"
        say(f"{scored.source} {scored.split} has no {lacking}: {len(scored.predictions)} predictions, no scores")
    for table in knowledge_tables(result):
        out().print(table)
    extra = {name: value for name, value in scored.scores.items() if name in (metric or ())}
    for name, value in extra.items():
        say(f"{name}  {value}")


def _data_settings(data: str | None, sets: list[str]) -> dict[str, Any]:
    """The settings of ``--set data.KEY=VALUE``, checked as those of a recipe are."""
    if not sets:
        return {}
    keys = [text.partition("=")[0].strip() for text in sets]
    other = [key for key in keys if key not in DATA_SETTINGS]
    if data is None or other:
        raise HftuneError(
            f"--set {other[0]} can't be used here" if other else "--set was given but no --data",
            hint=f"--set takes what finds the data that --data names: {', '.join(DATA_SETTINGS)}",
        )
    section = options.resolve(None, sets, {"data.dataset_name": data}, task="classify").data
    return section.model_dump(include={key.removeprefix("data.") for key in keys})


def _keep(scored: Scores, output: Path | None) -> list[Path]:
    """Write the predictions: to the file that was named, or where answers belong that nobody named a file for."""
    from hftune.files import write_jsonl, write_text

    if output is None and scored.belongs is None:
        return []
    if output is not None and (scored.lines is None or output.suffix == ".jsonl"):
        write_jsonl(output, scored.predictions)
        return [output]
    plain = output or scored.belongs
    assert plain is not None and scored.lines is not None, "only answers belong somewhere"
    write_text(plain, "".join(f"{visible(line)}\n" for line in scored.lines))
    if output is not None:
        return [plain]
    rows = plain.with_suffix(".jsonl")
    write_jsonl(rows, scored.predictions)
    return [plain, rows]
