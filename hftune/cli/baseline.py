"""``hftune baseline``: what the majority label, a bag of words or one fixed answer score, before any model is trained.

hftune baseline --data reviews
hftune baseline --data births --answer London
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hftune.cli import options
from hftune.cli.outcome import score_table
from hftune.cli.terminal import out, say, show_json
from hftune.errors import HftuneError

Answer = Annotated[
    str | None,
    typer.Option(
        "--answer",
        metavar="TEXT",
        help="Score this answer to every question; the data are questions then.",
        show_default=False,
    ),
]


def baseline(
    data: options.Data = None,
    answer: Answer = None,
    labels: options.Labels = None,
    text_column: options.TextColumn = None,
    pair_column: options.PairColumn = None,
    label_column: options.LabelColumn = None,
    sets: options.Set = None,
    as_json: options.Json = False,
) -> None:
    """Score the majority label and TF-IDF + logistic regression, or one answer to all questions, on dev and test."""
    from hftune.data.questions import EMBEDDED

    recipe = options.resolve(
        None,
        sets,
        task="answer" if answer is not None or data in EMBEDDED else "classify",
        data=data,
        labels=labels,
        text_column=text_column,
        pair_column=pair_column,
        label_column=label_column,
    )
    if answer is not None and not answer.strip():
        raise HftuneError("--answer is empty", hint="name an answer, as in --answer London")

    from hftune.quiet import quiet_libraries
    from hftune.tasks import TASKS
    from hftune.tasks.answers import constant_baseline

    quiet_libraries()
    task = TASKS[recipe.task.kind](recipe)
    rows = task.load_data()
    facts = task.describe(rows)
    splits = [name for name in ("dev", "test") if name in facts.rows]
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
