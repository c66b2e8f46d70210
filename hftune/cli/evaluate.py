"""``hftune evaluate``: score any run again, on any data.

hftune evaluate runs/a
hftune evaluate runs/a --data other.csv --split dev --json
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from hftune.cli import options
from hftune.cli.outcome import score_table
from hftune.cli.terminal import note, out, say, show_json
from hftune.errors import HftuneError

Split = Annotated[
    str | None,
    typer.Option("--split", metavar="NAME", help="train, dev or test; all for the rows of a single file."),
]
Predictions = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write every prediction here, as jsonl.")
]
Metric = Annotated[
    list[str] | None, typer.Option("--metric", metavar="NAME", help="A further metric; may be given often.")
]


def evaluate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run, a model folder, or a Hub id.")],
    data: options.Data = None,
    split: Split = None,
    text_column: options.TextColumn = None,
    pair_column: options.PairColumn = None,
    label_column: options.LabelColumn = None,
    metric: Metric = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Rows in one forward pass.")] = 64,
    output: Predictions = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = None,
    allow_pickle: options.AllowPickle = None,
    as_json: options.Json = False,
) -> None:
    """Score a run, a folder or a Hub model on one split of any labelled data."""
    columns = {"text_column": text_column, "pair_column": pair_column, "label_column": label_column}
    if data is None and any(columns.values()):
        raise HftuneError("columns were named but no data", hint="add --data NAME|PATH")
    if output is not None and output.exists():
        raise HftuneError(f"{output} exists already", hint="name another file; nothing is overwritten")

    from hftune import inference
    from hftune.cli.watch import Watcher
    from hftune.config.data import LabelledData
    from hftune.config.model import ModelSection
    from hftune.files import write_jsonl
    from hftune.quiet import quiet_libraries

    quiet_libraries()
    with Watcher() as listener:
        scored = inference.evaluate(
            run,
            LabelledData(name=data, **columns) if data is not None else None,
            split,
            batch_size=batch_size,
            settings=ModelSection(
                name=run, revision=revision, trust_remote_code=bool(trust_remote_code), allow_pickle=bool(allow_pickle)
            ),
            metrics=metric or (),
            listener=listener,
        )
        if scored.collapsed:
            listener.warn(f"the predictions have collapsed: {scored.collapsed}")
    if output is not None:
        write_jsonl(output, scored.predictions)
        note(f"{len(scored.predictions)} predictions in {output}")
    result: dict[str, Any] = {
        "model": run,
        "data": scored.source,
        "splits": {scored.split: scored.scores},
        "baselines": {"majority of split": {scored.split: scored.majority}},
        "collapsed": scored.collapsed is not None,
    }
    if as_json:
        show_json(result)
        return
    out().print(score_table(result))
    extra = {name: value for name, value in scored.scores.items() if name in (metric or ())}
    for name, value in extra.items():
        say(f"{name}  {value}")
