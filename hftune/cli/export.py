"""``hftune export``: write a classifier as ONNX, and compare its scores with the original's.

hftune export runs/a --onnx                        # exports/a/model.onnx, scored like the run on its validation split
hftune export runs/a --int8 --output small         # with 8-bit weights: about a quarter of the size
hftune predict small "never disappointing"
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from hftune.cli.evaluate import DATA_SETTINGS, scoring_request
from hftune.cli.options import RUN, USED, Json, Run, Split, option, settings_command
from hftune.cli.terminal import RunProgress, out, say, show_json, table
from hftune.errors import HftuneError
from hftune.files import file_name

Onnx = Annotated[bool, option(RUN, None, "Export an ONNX graph, which ONNX Runtime runs without torch.", "--onnx")]
Int8 = Annotated[bool, option(RUN, None, "Export an ONNX graph with 8-bit weights.", "--int8")]
Output = Annotated[Path | None, option(RUN, "FOLDER", "A new folder; exports/NAME by default.", "--output", "-o")]


@settings_command(takes=(*DATA_SETTINGS, *USED), help_task="classify")
def export(
    settings: dict[str, Any],
    run: Run,
    onnx: Onnx = False,
    int8: Int8 = False,
    output: Output = None,
    split: Split = None,
    as_json: Json = False,
) -> None:
    """Write a classifier as ONNX, with or without 8-bit weights, and compare its scores with the original's."""
    if onnx == int8:
        what = "both --onnx and --int8 were given" if int8 else "neither --onnx nor --int8 was given"
        raise HftuneError(what, hint="choose --onnx, or --int8 for ONNX with 8-bit weights")
    if "data.dataset_name" not in settings:
        split = split or "validation"
    request = scoring_request(run, settings, split)

    from hftune.pipeline.onnx_export import export as write
    from hftune.progress import quiet_libraries

    quiet_libraries()
    # resolved, so that a run given as . or .. has a name too
    name = file_name(Path(run).resolve().name)
    folder = output or Path("exports") / f"{name}{'-int8' if int8 else ''}"
    with RunProgress() as progress:
        made = write(request, folder, int8=int8, progress=progress)
    if as_json:
        show_json(made.as_dict())
        return
    shown = table("", "accuracy", "macro-F1", "size", "texts/s")
    for name, scores in made.scores.items():
        size, speed = made.megabytes[name], made.texts_per_second[name]
        shown.add_row(name, f"{scores['accuracy']:.4f}", f"{scores['f1_macro']:.4f}", f"{size:.1f} MB", f"{speed:,.0f}")
    out().print(shown)
    say(
        f"accuracy lost: {made.accuracy_lost:+.4f}; {made.labels_changed} of {made.rows} labels of {made.split} "
        f"changed; largest difference of a logit {made.largest_difference:.2g}"
    )
    say(str(made.folder))
