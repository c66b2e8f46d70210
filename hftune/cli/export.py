"""``hftune export``: a classifier in the form that other programs run, and what that costs in scores.

hftune export runs/a --onnx                        # exports/a/model.onnx, scored beside the run on its validation split
hftune export runs/a --int8 --output small         # with 8-bit weights: about a quarter of the size
hftune predict small "never disappointing"
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hftune.cli import options
from hftune.cli.terminal import out, say, show_json
from hftune.errors import HftuneError
from hftune.files import file_name

if TYPE_CHECKING:
    from hftune.exporting import Exported

Onnx = Annotated[bool, typer.Option("--onnx", help="As an ONNX graph, which ONNX Runtime runs without torch.")]
Int8 = Annotated[bool, typer.Option("--int8", help="As an ONNX graph with 8-bit weights.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Where to; exports/NAME where not given.")
]
Split = Annotated[
    str | None, typer.Option("--split", metavar="NAME", help="What to compare on; validation of a run where not given.")
]


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run, a model folder, or a Hub id.")],
    onnx: Onnx = False,
    int8: Int8 = False,
    output: Output = None,
    data: options.Data = None,
    split: Split = None,
    text_column: options.TextColumn = None,
    pair_column: options.PairColumn = None,
    label_column: options.LabelColumn = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = None,
    trust_base_code: options.TrustBaseCode = None,
    as_json: options.Json = False,
) -> None:
    """Write a classifier as ONNX, with or without 8-bit weights, and compare its scores with the original's."""
    if onnx == int8:
        what = "both --onnx and --int8 were given" if onnx else "the form to export to was not said"
        raise HftuneError(what, hint="choose --onnx, or --int8 for ONNX with 8-bit weights")
    named = {
        "text_column_name": text_column,
        "text_pair_column_name": pair_column,
        "label_column_name": label_column,
    }
    columns = {name: column for name, column in named.items() if column is not None}
    if data is None and columns:
        raise HftuneError("columns were named but no data", hint="add --data NAME|PATH")

    from hftune.cli.watch import Watcher
    from hftune.config.consent import used_model
    from hftune.exporting import export as write
    from hftune.outcomes import Request
    from hftune.quiet import quiet_libraries

    quiet_libraries()
    settings = used_model(run, revision, trust_remote_code, trust_base_code)
    request = Request(run, settings, data, split or ("validation" if data is None else None), columns)
    folder = output or Path("exports") / f"{_name(run)}{'-int8' if int8 else ''}"
    with Watcher() as listener:
        made = write(request, folder, int8=int8, listener=listener)
    if as_json:
        show_json(made.as_dict())
    else:
        _show(made)


def _show(made: Exported) -> None:
    from rich.table import Table

    table = Table("", "accuracy", "macro-F1", "size", "texts/s", box=None, pad_edge=False, header_style="bold")
    for name, scores in made.scores.items():
        size, speed = made.megabytes[name], made.texts_per_second[name]
        table.add_row(name, f"{scores['accuracy']:.4f}", f"{scores['f1_macro']:.4f}", f"{size:.1f} MB", f"{speed:,.0f}")
    out().print(table)
    say(
        f"accuracy lost: {made.lost:+.4f}; {made.labels_changed} of {made.rows} labels of {made.split} changed; "
        f"largest difference of a logit {made.largest_difference:.2g}"
    )
    say(str(made.folder))


def _name(run: str) -> str:
    """What to call an export: the run's own folder, also where that was given as ``.`` or ``..``."""
    return file_name(Path(run).resolve().name)
