"""Labeling 10,000 texts with a saved classifier: ``hftune.predict``, and transformers' own pipeline in batches of 32.

Both load the model once, before the turns. Labels must be equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from transformers import pipeline

from hftune.bench.case import Case, Goal, Scale, Side, Turn, timed
from hftune.bench.classify import classify_recipe
from hftune.bench.rows import texts, write_rows
from hftune.bench.training import Prepared
from hftune.config.model import ModelSection
from hftune.inference import predictor

STOCK = 'pipeline("text-classification", batch_size=32)'
TEXTS = 10_000
LONGEST = 128


def sides(folder: Path, scale: Scale) -> Mapping[str, Side]:
    """One saved model, asked in two ways."""
    data = write_rows(folder / "rows", "sentences", train=scale.of(1000, least=64))
    prepared = Prepared(classify_recipe(data, scale, LONGEST))
    saved = folder / "model"
    prepared.task.save(prepared.model().eval(), prepared.tokenizer, prepared.data, saved)
    asked = [text for _, text in texts("sentences", scale.of(TEXTS, least=100), seed=1)]
    _, ask = predictor(str(saved), ModelSection(model_name_or_path=str(saved)))
    stock = pipeline("text-classification", model=str(saved), device="cpu")
    said: dict[str, list[str]] = {}

    def ours() -> Turn:
        rows = [{"text": text} for text in asked]
        return timed(len(asked), lambda: said.update(ours=[answer.label for answer in ask(rows, 64)]))

    def theirs() -> Turn:
        def label() -> None:
            said["theirs"] = [answer["label"] for answer in stock(asked, batch_size=32, truncation=True)]
            pairs = zip(said["theirs"], said.get("ours", said["theirs"]), strict=True)
            assert sum(one != other for one, other in pairs) <= len(asked) / 1000, "but for ties, both say the same"

        return timed(len(asked), label)

    return {"hftune": ours, STOCK: theirs}


CASE = Case(
    name="prediction",
    what="prediction of 10,000 texts",
    unit="texts",
    goals=(Goal(STOCK, least=2.5),),
    sides=sides,
    repeats=2,
)
