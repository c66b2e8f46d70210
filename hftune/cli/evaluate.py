"""``hftune evaluate``: score any run again, on any data.

hftune evaluate runs/a
hftune evaluate runs/a --data other.csv --split validation --json
hftune evaluate runs/births --data births --split validation
hftune evaluate runs/mnli --data nyu-mll/glue --dataset_config_name ax --output predictions.jsonl
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hftune.cli.options import (
    NEW_FILE,
    RUN,
    USED,
    BatchSize,
    Json,
    Run,
    Set,
    Split,
    option,
    settings_command,
    used_model,
)
from hftune.cli.tables import SHOWN, print_knowledge, print_scores
from hftune.cli.terminal import RunProgress, note, say, show_json, visible
from hftune.data.settings import SCORING_SETTINGS
from hftune.errors import HftuneError

if TYPE_CHECKING:
    from hftune.tasks.task import EvaluationRequest, EvaluationResult

DATA_SETTINGS = tuple(f"data.{name}" for name in SCORING_SETTINGS)
_OUTPUT = "Write every prediction to this file as jsonl; answers to questions as text unless it is a .jsonl file."
Predictions = Annotated[Path | None, option(RUN, "FILE", _OUTPUT, "--output", "-o", **NEW_FILE)]
Metric = Annotated[
    list[str] | None, option(RUN, "NAME", "A metric in addition to those of the task; can be repeated.", "--metric")
]


@settings_command(takes=(*DATA_SETTINGS, *USED), help_task="classify")
def evaluate(
    settings: dict[str, Any],
    run: Run,
    split: Split = None,
    sets: Set = None,
    metric: Metric = None,
    batch_size: BatchSize = 64,
    output: Predictions = None,
    as_json: Json = False,
) -> None:
    """Score a run, a folder or a Hub model on one split of any suitable data."""
    metrics = tuple(metric or ())
    request = scoring_request(run, settings, split, sets or (), metrics, batch_size, unlabeled=output is not None)

    from hftune.pipeline import inference
    from hftune.progress import quiet_libraries

    quiet_libraries()
    with RunProgress() as progress:
        scored = inference.evaluate(request, progress)
        if scored.collapsed:
            progress.warn(f"the predictions have collapsed: {scored.collapsed}")
    for path in _write(scored, output):
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
        print_scores(result)
    else:
        lacking = "labels" if scored.lines is None else "answers"
        say(f"{scored.source} {scored.split} has no {lacking}: {len(scored.predictions)} predictions, no scores")
    print_knowledge(result)
    for name in metrics:  # of a script or the Hub
        if name in scored.scores and name not in SHOWN:
            say(f"{name}  {scored.scores[name]}")


def scoring_request(
    run: str,
    settings: Mapping[str, Any],
    split: str | None,
    sets: Sequence[str] = (),
    metrics: tuple[str, ...] = (),
    batch_size: int = 64,
    *,
    unlabeled: bool = False,
) -> EvaluationRequest:
    """The model and the data to score it on, from the options of a command."""
    from hftune.pipeline.request import resolve_recipe
    from hftune.tasks.task import EvaluationRequest

    model = used_model(run, settings)
    stated = {key: value for key, value in settings.items() if key.startswith("data.")}
    data = stated.pop("data.dataset_name", None)
    columns: dict[str, Any] = {}
    if stated or sets:
        if data is None:
            first = next((f"--{key.removeprefix('data.').replace('_', '-')}" for key in stated), "--set")
            raise HftuneError(f"{first} was given but no --data", hint="add --data NAME|PATH")
        section = resolve_recipe(None, {"data.dataset_name": data, **stated}, sets, task="classify").data
        columns = section.model_dump(include=set(section.model_fields_set) - {"kind", "dataset_name"})
    return EvaluationRequest(run, model, data, split, columns, metrics, batch_size, unlabeled)


def _write(scored: EvaluationResult, output: Path | None) -> list[Path]:
    """Write the predictions to the file that was named, or answers to the file of their run."""
    from hftune.files import write_jsonl, write_text

    if output is None and scored.default_file is None:
        return []
    if output is not None and (scored.lines is None or output.suffix == ".jsonl"):
        write_jsonl(output, scored.predictions)
        return [output]
    plain = output or scored.default_file
    assert plain is not None and scored.lines is not None, "only answers have a file of their own"
    write_text(plain, "".join(f"{visible(line)}\n" for line in scored.lines))
    if output is not None:
        return [plain]
    rows = plain.with_suffix(".jsonl")
    write_jsonl(rows, scored.predictions)
    return [plain, rows]
