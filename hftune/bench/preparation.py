"""Preparing 100,000 texts for training, from the file to rows of tokens, for the second time and for the first.

Reading, checking, the tokenizer (learned from the text, or found again) and tokenizing are in it, importing libraries
is not. The first time starts from an empty cache.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from hftune.bench.case import Case, Goal, Scale, Side, Turn, own_cache, timed
from hftune.bench.classify import classify_recipe
from hftune.bench.rows import write_rows
from hftune.tasks import TASKS

FIRST = "the first time"
ROWS = 100_000


def sides(folder: Path, scale: Scale) -> Mapping[str, Side]:
    """The second time needs a first one before it, which is not counted."""
    rows = scale.of(ROWS, least=2_500)
    recipe = classify_recipe(write_rows(folder / "rows", "sentences", train=rows), scale, 128)
    cache = folder / "cache"

    def prepare() -> None:
        task = TASKS[recipe.task.kind](recipe)
        data = task.load_data()
        task.prepare(data, task.load_tokenizer(data))

    def first() -> Turn:
        shutil.rmtree(cache, ignore_errors=True)
        with own_cache(cache):
            return timed(rows, prepare)

    def second() -> Turn:
        if not cache.exists():
            first()
        with own_cache(cache):
            return timed(rows, prepare)

    return {"hftune, the second time": second, FIRST: first}


CASE = Case(
    name="preparation",
    what="data preparation of 100,000 texts, the second time",
    unit="texts",
    goals=(Goal(FIRST, least=20),),
    sides=sides,
)
