"""``hftune baseline``: what the majority label and a bag of words score, before any model is trained.

hftune baseline --data reviews
"""

from __future__ import annotations

from hftune.cli import options
from hftune.cli.outcome import score_table
from hftune.cli.terminal import out, say, show_json


def baseline(
    data: options.Data = None,
    labels: options.Labels = None,
    text_column: options.TextColumn = None,
    pair_column: options.PairColumn = None,
    label_column: options.LabelColumn = None,
    sets: options.Set = None,
    as_json: options.Json = False,
) -> None:
    """Score the majority label and TF-IDF + logistic regression on dev and test."""
    recipe = options.resolve(
        None,
        sets,
        task="classify",
        data=data,
        labels=labels,
        text_column=text_column,
        pair_column=pair_column,
        label_column=label_column,
    )

    from hftune.quiet import quiet_libraries
    from hftune.tasks import TASKS

    quiet_libraries()
    task = TASKS[recipe.task.kind](recipe)
    rows = task.load_data()
    facts = task.describe(rows)
    splits = [name for name in ("dev", "test") if name in facts.rows]
    result = {"data": facts.as_dict(), "splits": {}, "baselines": task.baselines(rows, splits)}
    if as_json:
        show_json(result)
        return
    counts = ", ".join(f"{name} {count:,}" for name, count in facts.rows.items())
    say(f"{facts.source}: {counts}")
    for note in facts.notes:
        say(note, style="dim")
    out().print(score_table(result))
