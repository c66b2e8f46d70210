"""README.md of a model: what it is, how it was made, what it scores, and what it is not good for.

The pipeline calls ``write_card`` when a run is over, ``hftune.hub.best`` composes one along the way, and
``hftune.hub.publish`` fills the address in. Only the run directory is read, and the same run gives the same card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import Environment, FileSystemLoader, StrictUndefined

import hftune
from hftune.config.hub import HubSection
from hftune.config.load import recipe_yaml
from hftune.config.recipe import Recipe
from hftune.files import read_json, write_text
from hftune.hub.cardtext import MOST_LABELS, data_table, label_table, limits, parameters, remarks, score_table, speed
from hftune.hub.contents import CARD
from hftune.hub.markdown import fenced, inline, plain, without_home
from hftune.hub.usage import ADDRESS, MARK, Usage, usage
from hftune.runs.directory import RunDir
from hftune.runs.naming import public_name
from hftune.runs.wording import number, score_name

ANSWERS, JOINT, SPANS = "answer", "joint", "span"
"""The kind of task whose model writes answers to questions."""
TEMPLATES = Path(__file__).parent / "templates"
METRIC_IDS = {
    "f1_macro": ("f1", {"average": "macro"}),
    "f1_weighted": ("f1", {"average": "weighted"}),
    "mcc": ("matthews_correlation", None),
}
"""Our names of scores → the Hub's, where they differ."""


def write_card(run: RunDir) -> None:
    """Write model/README.md of a run that has its metrics."""
    write_text(run.model / CARD, card_text(run))


def fill_address(text: str, repo: str, revision: str | None) -> str:
    """The card with the repository's id where the run could not know it."""
    return text.replace(ADDRESS, f'"{repo}", revision="{revision}"' if revision else f'"{repo}"')


@dataclass(frozen=True)
class Subject:
    """What a card is about."""

    name: str
    recipe: Recipe
    metrics: Mapping[str, Any]
    """As metrics.json has it, or as much of it as is known."""
    folder: Path
    """The model."""
    example: Mapping[str, Any]
    """A row as the model reads it: what it is asked in the lines that load it; empty where none is known."""


def card_text(run: RunDir) -> str:
    """The whole card of a run that has its metrics."""
    example = next((rows[0] for split in ("validation", "test") if (rows := run.read_predictions(split))), {})
    return compose(Subject(run.name, run.read_recipe(), run.read_metrics(), run.model, example))


def compose(subject: Subject, unfinished: str = "") -> str:
    """The card; unfinished says how far a run has come that still trains."""
    metrics, recipe = subject.metrics, subject.recipe
    config = subject.folder / "config.json"
    pairs = "text_pair" in subject.example
    example = plain(subject.example["text"]) if subject.example and recipe.task.kind in (ANSWERS, SPANS) else None
    how = usage(
        read_json(config) if config.is_file() else {},
        adapter=(subject.folder / "adapter_config.json").is_file(),
        pairs=pairs,
        question=example if recipe.task.kind == ANSWERS else None,
        hole=example if recipe.task.kind == SPANS and MARK in (example or "") else None,
        masked_lm_beside=(subject.folder / "mlm").is_dir(),
        writes=recipe.task.kind == "clm",
    )
    data = metrics.get("data", {})
    splits, selection = metrics.get("splits", {}), metrics.get("selection") or {}
    main_split = "test" if "test" in splits else next(iter(splits), "")
    header = card_header(subject.name, recipe, metrics, how, ["unfinished"] if unfinished else [])
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown: what is foreign goes through hftune.hub.markdown
    )
    text = environment.get_template("card.md.j2").render(
        header=header.to_yaml(),
        title=inline(subject.name),
        what=_what(recipe, metrics),
        unfinished=unfinished,
        collapsed=metrics.get("collapsed", False),
        snippet=how.snippet,
        labels=_labels(metrics.get("labels", [])),
        scores=score_table(metrics),
        compared=bool(metrics.get("baselines")),
        remarks=remarks(metrics),
        main_split=main_split,
        per_label=label_table(splits.get(main_split, {}).get("per_class", {})),
        base=_base(recipe),
        method=inline(recipe.method.kind),
        parameters=parameters(metrics.get("parameters", {})),
        seed=metrics.get("seed", recipe.train.seed),
        selection=_selection(selection),
        speed=speed(metrics.get("speed", {})),
        source=inline(public_name(data.get("source", recipe.data.dataset_name))),
        data=data_table(data),
        notes=[inline(without_home(note)) for note in data.get("notes", [])],
        version=hftune.__version__,
        command=f"hftune {recipe.task.command} --recipe recipe.yaml",
        # Whoever repeats the run can't push to where it was pushed.
        recipe=fenced(without_home(recipe_yaml(recipe.model_copy(update={"hub": HubSection()}))), "yaml"),
        limits=limits(metrics, recipe, pairs=pairs),
    )
    return str(ModelCard(text))  # parsed and put together again: a header that is no YAML fails here, not at the Hub


def card_header(
    name: str, recipe: Recipe, metrics: Mapping[str, Any], how: Usage, tags: Sequence[str] = ()
) -> ModelCardData:
    """The metadata by which the Hub finds and lists a model; the licence is for the author to add."""
    data_id = _hub_id(recipe.data.dataset_name)
    source = plain(public_name(metrics.get("data", {}).get("source", recipe.data.dataset_name)))
    results = []
    for split, scores in metrics.get("splits", {}).items():
        for metric, value in scores.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            kind, arguments = METRIC_IDS.get(metric, (metric, None))
            results.append(
                EvalResult(
                    task_type=how.pipeline_tag,
                    dataset_type=data_id or source,
                    dataset_name=source,
                    dataset_split=split,
                    metric_type=kind,
                    metric_name=score_name(metric),
                    metric_value=value,
                    metric_args=arguments,
                )
            )
    base = None if recipe.model.from_scratch else _hub_id(recipe.model.model_name_or_path)
    return ModelCardData(
        model_name=plain(name),
        base_model=base,
        datasets=[data_id] if data_id else None,
        library_name=how.library,
        pipeline_tag=how.pipeline_tag,
        tags=["hftune", recipe.task.kind, recipe.method.kind, *tags],
        metrics=sorted({result.metric_type for result in results}) or None,
        eval_results=results or None,
    )


def _hub_id(name: str) -> str | None:
    """The name, if it is one on the Hub: owner/name, and no path here."""
    is_id = name.count("/") == 1 and not name.startswith((".", "/", "~")) and not Path(name).suffix
    return name if is_id and not Path(name).exists() else None


def _labels(names: Sequence[str]) -> list[str]:
    """The labels that the card lists; with very many the first ones."""
    shown = [inline(label) for label in names[:MOST_LABELS]]
    return shown if len(names) <= MOST_LABELS else [*shown, f"… {len(names):,} in all"]


def _what(recipe: Recipe, metrics: Mapping[str, Any]) -> str:
    labels = metrics.get("labels", [])
    what = f"A classifier with {len(labels)} labels" if labels else f"A model for the task “{inline(recipe.task.kind)}”"
    if recipe.task.kind == ANSWERS:
        what = "A language model that answers questions"
    fresh = f"{inline(recipe.model.model_name_or_path)}, trained from fresh weights"
    start = fresh if recipe.model.from_scratch else f"{_base(recipe)}, fine-tuned"
    source = inline(public_name(metrics.get("data", {}).get("source", recipe.data.dataset_name)))
    beside = " and, beside it, a masked language model on unlabeled text" if recipe.task.kind == JOINT else ""
    return f"{what}{beside}: {start} on {source} with the method “{inline(recipe.method.kind)}”."


def _base(recipe: Recipe) -> str:
    name, hub_id = (
        recipe.model.model_name_or_path,
        None if recipe.model.from_scratch else _hub_id(recipe.model.model_name_or_path),
    )
    if recipe.model.from_scratch:
        return f"none; the architecture {inline(name)} with fresh weights"
    shown = inline(public_name(name))
    at = f" at revision {inline(recipe.model.model_revision)}" if recipe.model.model_revision else ""
    return (f"[{shown}](https://huggingface.co/{hub_id})" if hub_id else shown) + at


def _selection(selection: dict[str, Any]) -> str:
    if not selection.get("metric"):
        return ""
    score = number(selection.get("score"))
    return (
        f"the checkpoint of step {selection.get('step')}, best on validation by {inline(selection['metric'])} ({score})"
    )
