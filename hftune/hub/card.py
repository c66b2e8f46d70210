"""The model card (model/README.md): what the model is, how it was trained, its scores and its limitations.

A card is made from the run directory alone, so the same run always gives the same card. Text of the data, of labels
and of file names is untrusted: it is escaped so that it can't become markup.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import Environment, FileSystemLoader, StrictUndefined

import hftune
from hftune.cache import home_folder
from hftune.data.settings import LabeledData
from hftune.evaluation.scores import LOWER_IS_BETTER
from hftune.files import read_json, write_text
from hftune.hub.contents import CARD
from hftune.recipe import HubSection, Recipe, read_recipe, recipe_yaml
from hftune.runs.directory import RunDir, public_name
from hftune.runs.formatting import baseline_name, baseline_notes, duration, number, score_name, was_left_out
from hftune.sanitize import visible
from hftune.tasks.settings import TeacherSettings

ANSWERS, JOINT, SPANS = "answer", "joint", "span"
TEMPLATES = Path(__file__).parent / "templates"
# Names of metrics that differ on the Hub.
METRIC_IDS = {
    "f1_macro": ("f1", {"average": "macro"}),
    "f1_micro": ("f1", {"average": "micro"}),
    "f1_weighted": ("f1", {"average": "weighted"}),
    "precision_macro": ("precision", {"average": "macro"}),
    "precision_weighted": ("precision", {"average": "weighted"}),
    "recall_macro": ("recall", {"average": "macro"}),
    "recall_weighted": ("recall", {"average": "weighted"}),
    "mcc": ("matthews_correlation", None),
}


def write_card(run: RunDir) -> None:
    """Write model/README.md of a run with metrics."""
    write_text(run.model / CARD, card_text(run))


def fill_address(text: str, repo: str, revision: str | None) -> str:
    """The card with the repository id in place of the placeholder."""
    return text.replace(ADDRESS, f'"{repo}", revision="{revision}"' if revision else f'"{repo}"')


def card_text(run: RunDir) -> str:
    """The card of a run with metrics."""
    example = next((rows[0] for split in ("validation", "test") if (rows := run.read_predictions(split))), {})
    return render_card(run.name, read_recipe(run), run.read_metrics(), run.model, example)


def render_card(
    name: str,
    recipe: Recipe,
    metrics: Mapping[str, Any],
    folder: Path,
    example: Mapping[str, Any],
    unfinished: str = "",
) -> str:
    """The card as Markdown.

    Args:
        name: The name of the run.
        recipe: Its recipe.
        metrics: As in metrics.json, or the part that is known.
        folder: The model.
        example: An input for the code that loads the model; empty if none is known.
        unfinished: The state of a run that is still training.
    """
    config = folder / "config.json"
    pairs = "text_pair" in example
    prompt = plain(example["text"]) if example and recipe.task.kind in (ANSWERS, SPANS) else None
    how = usage(
        read_json(config) if config.is_file() else {},
        adapter=(folder / "adapter_config.json").is_file(),
        pairs=pairs,
        question=prompt if recipe.task.kind == ANSWERS else None,
        gap=prompt if recipe.task.kind == SPANS and MARK in (prompt or "") else None,
        with_masked_lm=(folder / "mlm").is_dir(),
        causal_lm=recipe.task.kind == "clm",
    )
    data = metrics.get("data", {})
    splits, selection = metrics.get("splits", {}), metrics.get("selection") or {}
    main_split = "test" if "test" in splits else next(iter(splits), "")
    header = card_header(name, recipe, metrics, how, ["unfinished"] if unfinished else [])
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown: untrusted text is escaped by ``inline``
    )
    text = environment.get_template("card.md.j2").render(
        header=header.to_yaml(),
        title=inline(name),
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
        pooling=inline("{kind} ({source})".format(**metrics["pooling"])) if metrics.get("pooling") else "",
        parameters=parameters(metrics.get("parameters", {})),
        seed=metrics.get("seed", recipe.train.seed),
        selection=_selection(selection),
        speed=speed(metrics.get("speed", {})),
        source=inline(_source(recipe, metrics)),
        data=data_table(data),
        notes=[inline(without_home(note)) for note in data.get("notes", [])],
        version=hftune.__version__,
        command=f"hftune {recipe.task.command} --recipe recipe.yaml",
        # Readers who repeat the run can't push to this repository.
        recipe=fenced(without_home(recipe_yaml(recipe.model_copy(update={"hub": HubSection()}))), "yaml"),
        limits=limits(metrics, recipe, pairs=pairs),
    )
    return str(ModelCard(text))  # parsed again: an invalid header fails here and not on the Hub


def card_header(
    name: str, recipe: Recipe, metrics: Mapping[str, Any], how: Usage, tags: Sequence[str] = ()
) -> ModelCardData:
    """The metadata that the Hub reads; the author adds the license."""
    data_id = _hub_id(recipe.data.dataset_name)
    source = plain(_source(recipe, metrics))
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
    """The name if it is a Hub id: owner/name, and not a local path."""
    is_id = name.count("/") == 1 and not name.startswith((".", "/", "~")) and not Path(name).suffix
    return name if is_id and not Path(name).exists() else None


def _labels(names: Sequence[str]) -> list[str]:
    """The first MOST_LABELS labels."""
    shown = [inline(label) for label in names[:MOST_LABELS]]
    return shown if len(names) <= MOST_LABELS else [*shown, f"… {len(names):,} in total"]


def _what(recipe: Recipe, metrics: Mapping[str, Any]) -> str:
    labels = metrics.get("labels", [])
    what = f"A classifier with {len(labels)} labels" if labels else f"A model for the task “{inline(recipe.task.kind)}”"
    if recipe.task.kind == ANSWERS:
        what = "A language model that answers questions"
    if isinstance(recipe.task, TeacherSettings):
        what = f"An encoder that was distilled from the teacher {inline(public_name(recipe.task.teacher))}"
    scratch = f"{inline(recipe.model.model_name_or_path)}, trained from scratch"
    start = scratch if recipe.model.from_scratch else f"{_base(recipe)}, fine-tuned"
    source = inline(_source(recipe, metrics))
    jointly = " and, jointly, a masked language model on unlabeled text" if recipe.task.kind == JOINT else ""
    return f"{what}{jointly}: {start} on {source} with the method “{inline(recipe.method.kind)}”."


def _source(recipe: Recipe, metrics: Mapping[str, Any]) -> str:
    return public_name(metrics.get("data", {}).get("source", recipe.data.dataset_name))


def _base(recipe: Recipe) -> str:
    name = recipe.model.model_name_or_path
    if recipe.model.from_scratch:
        return f"none; the architecture {inline(name)} with random initialization"
    hub_id, shown = _hub_id(name), inline(public_name(name))
    at = f" at revision {inline(recipe.model.model_revision)}" if recipe.model.model_revision else ""
    return (f"[{shown}](https://huggingface.co/{hub_id})" if hub_id else shown) + at


def _selection(selection: dict[str, Any]) -> str:
    if not selection.get("metric"):
        return ""
    score = number(selection.get("score"))
    return (
        f"the checkpoint of step {selection.get('step')}, best on validation by {inline(selection['metric'])} ({score})"
    )


# ---- parts of a card: the code that loads the model, tables, and sentences made from metrics.json ----

MOST_LABELS = 60
ADDRESS = '"USER/NAME"'
"""Placeholder in the card of a run; replaced when the run is pushed."""

MARK = "⁇"
TEXT = '"the food was great but we will never come back"'
PAIR = '{"text": "is the sky blue?", "text_pair": "by day the sky is blue"}'

LONGEST = 200
# What begins a construct in the Markdown and HTML that the Hub renders: markup, entities, formulas, mentions, bare
# addresses; at the start of a text also headings, lists, rules and numbers.
_SPECIAL = re.compile(r"[\\`*_\[\]<>|~$&@]|:(?=//)|(?<=www)\.|^[-+#=]|(?<=^\d)[.)]", re.IGNORECASE)


@dataclass(frozen=True)
class Usage:
    """How the model is loaded: for the Hub's metadata and for a reader."""

    pipeline_tag: str
    library: str
    snippet: str


def usage(
    config: Mapping[str, Any],
    *,
    adapter: bool,
    pairs: bool,
    question: str | None = None,
    gap: str | None = None,
    with_masked_lm: bool = False,
    causal_lm: bool = False,
) -> Usage:
    """Pipeline tag, library and code for a model with this config.json, which is empty for an adapter.

    ``question`` is an example for a model that answers questions, ``gap`` one for a model pretrained by span
    corruption. Whether an adapter is that of a causal language model does not show in its folder.
    """
    kinds = " ".join(config.get("architectures") or [])
    generates = "CausalLM" in kinds or "LMHead" in kinds or "GPT" in kinds
    masked = "MaskedLM" in kinds
    tag = "text-generation" if generates else "fill-mask" if masked else "text-classification"
    if adapter and causal_lm:
        command = f'hftune generate {ADDRESS} --prompt "There once was"  # pip install hftune'
        return Usage("text-generation", "peft", fenced(command, "sh"))
    if adapter:
        given = f"[{PAIR}]" if pairs else f"[{TEXT}]"
        texts = '["is the sky blue?"], ["by day the sky is blue"]' if pairs else given
        lines = ["from hftune import predict  # pip install hftune", "", f"print(predict({ADDRESS}, {texts}))"]
        return Usage(tag, "peft", fenced("\n".join(lines), "python"))
    trust = ", trust_remote_code=True" if config.get("auto_map") else ""
    asked = '"Where was"' if generates else _with_a_mask(config) if masked else PAIR if pairs else TEXT
    more = ", max_new_tokens=40" if generates else ""
    marked = question if question is not None else gap
    if marked is not None:
        asked, more = json.dumps(f"{marked}{MARK}", ensure_ascii=False), ", return_full_text=False"
    lines = [
        "from transformers import pipeline",
        "",
        f'model = pipeline("{tag}", model={ADDRESS}{trust})',
        f"print(model({asked}{more}))",
    ]
    snippet = fenced("\n".join(lines), "python")
    if question is not None:
        snippet += "\n\n`hftune predict` also returns the confidence of each answer."
    if gap is not None:
        snippet += f"\n\n{MARK} marks the missing part; the last {MARK} starts the answer."
    if with_masked_lm:
        load = f'AutoModelForMaskedLM.from_pretrained({ADDRESS}, subfolder="mlm")'
        snippet += f"\n\nThe masked language model that was trained jointly: `{load}`."
    if trust:
        snippet += "\n\nThe repository contains the model's code (.py files): read it before you trust it."
    return Usage(tag, "transformers", snippet)


def _with_a_mask(config: Mapping[str, Any]) -> str:
    return '"the food was [MASK]"' if config.get("model_type") == "bert" else '"the food was <mask>"'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def score_table(metrics: Mapping[str, Any]) -> str:
    """Scores of the model and its baselines on every split; empty if nothing was scored."""
    systems = [("**this model**", metrics.get("splits", {}))]
    systems += [(inline(baseline_name(name)), splits) for name, splits in metrics.get("baselines", {}).items()]
    names = [name for name, value in _first(metrics.get("splits", {})).items() if _is_score(value)]
    if not names:
        return ""
    rows = [
        [f"{system}, {inline(split)}", *(number(scores.get(name)) for name in names)]
        for system, splits in systems
        for split, scores in splits.items()
        if not was_left_out(scores)
    ]
    return table(["", *(inline(score_name(name)) for name in names)], rows)


def label_table(per_class: Mapping[str, Mapping[str, Any]]) -> str:
    """Precision, recall and F1 of each label; empty for a task without labels."""
    if not per_class:
        return ""
    columns = list(_first(per_class))
    rows = [
        [inline(label), *(number(scores[column]) for column in columns)]
        for label, scores in list(per_class.items())[:MOST_LABELS]
    ]
    more = len(per_class) - MOST_LABELS
    left = f"\n\n… and {more} more labels." if more > 0 else ""
    return table(["label", *(inline(score_name(column)) for column in columns)], rows) + left


def data_table(data: Mapping[str, Any]) -> str:
    """Examples and fingerprint of each split."""
    prints = data.get("fingerprints", {})
    rows = [
        [inline(split), f"{count:,}", f"`{inline(prints.get(split, ''))}`" if prints.get(split) else "–"]
        for split, count in data.get("rows", {}).items()
    ]
    return table(["split", "examples", "fingerprint"], rows)


def parameters(counts: Mapping[str, Any]) -> str:
    """How many parameters were trained."""
    if not counts:
        return "all parameters trained"
    formula = f" = {inline(counts['formula'])}" if counts.get("formula") else ""
    return f"{counts['trainable']:,} of {counts['total']:,} parameters trained{formula}"


def speed(facts: Mapping[str, Any]) -> str:
    """Training time."""
    if "train_seconds" not in facts:
        return ""
    rate = facts.get("examples_per_second")
    steps = f" ({rate:,.0f} examples/s in training steps)" if rate else ""
    return f"Trained in {duration(facts['train_seconds'])} including evaluation and saving{steps}"


def remarks(metrics: Mapping[str, Any]) -> list[str]:
    """Sentences that state whether the model beats its baselines; a table alone is easily misread."""
    found = [f"{inline(note)}." for note in baseline_notes(metrics.get("baselines", {}))]
    for split, scores in metrics.get("splits", {}).items():
        name = next((name for name in ("accuracy", "exact_match", "perplexity") if name in scores), None)
        rivals = {
            baseline: splits[split][name]
            for baseline, splits in metrics.get("baselines", {}).items()
            if name is not None and name in splits.get(split, {})
        }
        if name is None or not rivals:
            continue
        sign = -1 if name in LOWER_IS_BETTER else 1
        best = max(rivals, key=lambda baseline: sign * rivals[baseline])
        gap = sign * (scores[name] - rivals[best])
        verb = "better than" if gap > 0 else "worse than" if gap < 0 else "no different from"
        by = f" by {number(abs(gap))}" if gap else ""
        found.append(
            f"On {inline(split)} the model is {verb} the best baseline ({inline(baseline_name(best))}) "
            f"in {inline(score_name(name))}{by}."
        )
    return found


def limits(metrics: Mapping[str, Any], recipe: Recipe, *, pairs: bool) -> list[str]:
    """Known limitations; pairs: whether the input is a pair of texts."""
    found = []
    if metrics.get("collapsed"):
        reason = f" ({inline(metrics['collapse_reason'])})" if metrics.get("collapse_reason") else ""
        found.append(f"It collapsed to (nearly) one answer{reason}: its scores are those of a constant prediction.")
    calibration = metrics.get("calibration") or {}
    split = next((name for name in ("test", "validation") if name in calibration), None)
    if split is not None:
        found.append(_calibration(calibration, split))
    never = [
        group
        for of_split in metrics.get("knowledge", {}).values()
        for group in of_split["groups"]
        if group["seen_in_pretraining"] is False and group["seen_in_finetuning"] is False
    ]
    if "knowledge" in metrics:
        found.append("It answers every question, even if it can't know the answer.")
    if never:
        rows = sum(group["rows"] for group in never)
        sure = sum(group["confidence"] * group["rows"] for group in never) / rows
        found.append(
            f"On {rows} questions about names it never saw, its average confidence is {number(sure)}; "
            "`hftune predict RUN --min-confidence P` leaves out uncertain answers."
        )
    if metrics.get("labels"):
        found.append("It always predicts one of its labels, even if none of them fits.")
    if isinstance(recipe.data, LabeledData):
        whole = "both texts of a pair together" if pairs else "per text"
        found.append(f"Inputs are truncated to {recipe.data.max_seq_length} tokens ({whole}).")
    seed = metrics.get("seed", recipe.train.seed)
    found.append(f"The scores come from one run with seed {seed}; other seeds give other scores.")
    found.append("It was not tested on texts that differ from the training data in topic, style or language.")
    return found


def _calibration(calibration: Mapping[str, Any], split: str) -> str:
    """Whether the model is too sure; without scores on validation there is no temperature."""
    facts, temperature = calibration[split], calibration["temperature"]
    error = f"the expected calibration error on {split} is {number(facts['ece'])}"
    if temperature is None:
        return f"{error[0].upper()}{error[1:]}."
    tendency = "overconfident" if temperature > 1.05 else "underconfident" if temperature < 0.95 else "well calibrated"
    return (
        f"The model is {tendency}: {error}, and {number(facts['ece_scaled'])} when the logits are divided by "
        f"{number(temperature)}, which was fitted on {inline(calibration['fitted_on'])}."
    )


def _first(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(iter(mapping.values()), {})


def _is_score(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def plain(text: str) -> str:
    """One line of limited length without control characters; for the header, where YAML quotes the rest."""
    line = " ".join(visible(text).split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"


def inline(text: object) -> str:
    """Text for a sentence or a table cell, with Markdown and HTML escaped."""
    return _SPECIAL.sub(lambda match: f"&#{ord(match[0])};", plain(str(text)))


def fenced(text: str, language: str) -> str:
    """A code block whose fence is longer than any run of backticks in it."""
    text = text.replace("\r\n", "\n")
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{visible(text).rstrip()}\n{fence}"


def without_home(text: str) -> str:
    """The home directory, which holds the user's name, as ~."""
    home = str(home_folder() or "")
    return text.replace(home, "~") if len(home) > 1 else text
