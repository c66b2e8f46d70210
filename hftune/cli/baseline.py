"""``hftune baseline``: what simple systems score, before any model is trained: labels, questions or text.

hftune baseline --data reviews
hftune baseline --data births --answer London
hftune baseline --corpus prose --set model.vocab_size=1000
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hftune.cli import options
from hftune.cli.flags import Given, resolve_settings, settings_command
from hftune.cli.outcome import score_table
from hftune.cli.terminal import out, say, show_json
from hftune.errors import HftuneError
from hftune.runs.wording import baseline_notes

Answer = Annotated[
    str | None,
    typer.Option(
        "--answer",
        metavar="TEXT",
        help="Score this answer to every question; the data are questions then.",
        show_default=False,
    ),
]


Corpus = Annotated[
    str | None,
    typer.Option(
        "--corpus",
        "-c",
        metavar="NAME|PATH",
        help="Score counting tokens and pairs of them on this text.",
        show_default=False,
    ),
]


@settings_command(
    {"corpus": Corpus, "answer": Answer, "sets": options.Set, "as_json": options.Json},
    task=None,
    sections=("data", "model"),
)
def baseline(values: dict[str, Any], given: Given) -> None:
    """Score simple systems on validation and test: majority label and bag of words, one answer, counts of text."""
    corpus, answer, sets, as_json = (values[name] for name in ("corpus", "answer", "sets", "as_json"))
    data = resolve_settings(given, None).get("data.dataset_name")
    if corpus is not None and data is not None:
        raise HftuneError("both --data and --corpus were given", hint="leave one of them out")
    if corpus is not None and answer is not None:
        raise HftuneError(
            "--answer was given with --corpus, but plain text asks no questions",
            hint="name the questions with --data, or leave --answer out",
        )
    task_kind = _task(data, corpus, answer)
    settings = resolve_settings(given, task_kind)
    if corpus is not None:
        settings["data.dataset_name"] = corpus
    recipe = options.resolve(None, sets, settings, task=task_kind)
    if not recipe.task.baselines:
        raise HftuneError("task.baselines is false, and baselines are all that was asked for", hint="leave it out")
    if answer is not None and not answer.strip():
        raise HftuneError("--answer is empty", hint="name an answer, as in --answer London")

    from hftune.quiet import quiet_libraries
    from hftune.tasks import TASKS
    from hftune.tasks.answers import constant_baseline

    quiet_libraries()
    task = TASKS[recipe.task.kind](recipe)
    rows = task.load_data()
    facts = task.describe(rows)
    splits = [name for name in ("validation", "test") if name in facts.rows]
    baselines = task.baselines(rows, splits)
    if answer is not None:
        baselines |= constant_baseline(answer, rows, splits, f"always {answer}")
    result: dict[str, Any] = {"data": facts.as_dict(), "splits": {}, "baselines": baselines}
    if as_json:
        show_json(result)
        return
    counts = ", ".join(f"{name} {count:,}" for name, count in facts.rows.items())
    say(f"{facts.source}: {counts}")
    for note in facts.notes:
        say(note, style="dim")
    out().print(score_table(result))
    for line in baseline_notes(result["baselines"]):
        say(line, style="dim")


def _task(data: str | None, corpus: str | None, answer: str | None) -> str:
    """The kind of task whose baselines are meant: as the flags say, or as an embedded name can only mean."""
    if corpus is not None:
        return "clm"
    if answer is not None:
        return "answer"
    from hftune.data.corpus import CORPORA
    from hftune.data.questions import EMBEDDED

    kinds = {**dict.fromkeys(CORPORA, "clm"), **dict.fromkeys(EMBEDDED, "answer")}
    return kinds.get(data or "", "classify")
