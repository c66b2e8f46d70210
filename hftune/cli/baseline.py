"""``hftune baseline``: scores of simple systems, before any model is trained, on labels, questions or text.

hftune baseline --data reviews
hftune baseline --data births --answer London
hftune baseline --corpus prose --set model.vocab_size=1000
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from hftune.cli.options import RUN, Given, Json, Set, option, resolve_settings, settings_command
from hftune.cli.tables import print_scores
from hftune.cli.terminal import say, show_json
from hftune.errors import HftuneError

if TYPE_CHECKING:
    from hftune.recipe import Recipe
    from hftune.tasks.task import DataSummary

_ANSWER = "Score this answer to every question; the data are questions then."
_CORPUS = "Score counts of tokens and token pairs on this text."
Answer = Annotated[str | None, option(RUN, "TEXT", _ANSWER, "--answer")]
Corpus = Annotated[str | None, option(RUN, "NAME|PATH", _CORPUS, "--corpus", "-c")]

COLUMNS = {"data.text_column_name", "data.text_pair_column_name", "data.label_column_name"}
"""Settings that only labeled rows have."""


def _task_of(values: Mapping[str, Any], given: Given) -> str:
    return _task(resolve_settings(given, None), values["corpus"], values["answer"])


@settings_command(task=_task_of, takes=("task", "data", "model"))
def baseline(
    settings: dict[str, Any], corpus: Corpus = None, answer: Answer = None, sets: Set = None, as_json: Json = False
) -> None:
    """Score simple systems on validation and test: majority label and bag of words, one answer, counts of text."""
    data = settings.get("data.dataset_name")
    if corpus is not None and data is not None:
        raise HftuneError("both --data and --corpus were given", hint="leave one of them out")
    if corpus is not None and answer is not None:
        raise HftuneError(
            "--answer was given with --corpus, but plain text has no questions",
            hint="name the questions with --data, or leave --answer out",
        )
    task_kind = _task(settings, corpus, answer)
    if corpus is not None:
        settings["data.dataset_name"] = corpus
    if answer is not None and not answer.strip():
        raise HftuneError("--answer is empty", hint="name an answer, as in --answer London")

    from hftune.pipeline.request import resolve_recipe

    recipe = resolve_recipe(None, settings, sets or (), task=task_kind)
    if not recipe.task.baselines:
        raise HftuneError("task.baselines is false, but this command scores nothing else", hint="leave it out")

    facts, baselines = _constant(recipe, answer) if task_kind == "answer" else _of_task(recipe)
    result: dict[str, Any] = {"data": facts.as_dict(), "splits": {}, "baselines": baselines}
    if as_json:
        show_json(result)
        return
    counts = ", ".join(f"{name} {count:,}" for name, count in facts.rows.items())
    say(f"{facts.source}: {counts}")
    for note in facts.notes:
        say(note, style="dim")
    print_scores(result)


def _constant(recipe: Recipe, answer: str | None) -> tuple[DataSummary, dict[str, Any]]:
    """Constant answers need neither torch nor the task, which takes seconds to import."""
    from hftune.config.section import expect
    from hftune.data.settings import QuestionData
    from hftune.tasks import answer_baselines as constant
    from hftune.tasks.task import DataSummary

    data = constant.checked_questions(expect(recipe.data, QuestionData))
    facts = DataSummary(data.source, data.rows, data.fingerprints, data.notes)
    splits = _scored(facts)
    found = constant.constant_baseline(constant.most_frequent_answer(data.train.required_answers), data, splits)
    if answer is not None:
        found |= constant.constant_baseline(answer, data, splits, f"always {answer}")
    return facts, found


def _of_task(recipe: Recipe) -> tuple[DataSummary, dict[str, Any]]:
    from hftune.progress import quiet_libraries
    from hftune.tasks import task_class

    quiet_libraries()
    task = task_class(recipe.task.kind)(recipe)
    data = task.load_data()
    facts = task.describe(data)
    return facts, task.baselines(data, _scored(facts))


def _scored(facts: DataSummary) -> list[str]:
    return [name for name in ("validation", "test") if name in facts.rows]


def _task(settings: Mapping[str, Any], corpus: str | None, answer: str | None) -> str:
    """The kind of task whose baselines are scored: from the flags, or what the data is recognized as."""
    if corpus is not None:
        return "clm"
    if answer is not None:
        return "answer"
    from hftune.data.locate import CORPORA, QUESTIONS
    from hftune.data.recognize import recognize

    data = settings.get("data.dataset_name") or ""
    kinds = {**dict.fromkeys(CORPORA, "clm"), **dict.fromkeys(QUESTIONS, "answer")}
    if data in kinds:
        return kinds[data]
    if not data or not COLUMNS.isdisjoint(settings):
        return "classify"
    kind = recognize(data, settings.get("data.delimiter"), settings.get("data.sheet_name"))
    return "answer" if kind == "questions" else "classify"
