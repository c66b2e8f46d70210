"""``hftune classify``: fine-tune a classifier on single texts or pairs.

hftune classify
hftune classify --model huawei-noah/TinyBERT_General_4L_312D --data reviews.csv --seeds 1,2,3
"""

from __future__ import annotations

from hftune.cli.flags import Typed, training_command

DEFAULT_RECIPE = "classify/reviews"


@training_command()
def classify(typed: Typed) -> None:
    """Fine-tune a classifier on single texts or pairs: best checkpoint on validation, then test."""
    typed.train(task="classify", default=DEFAULT_RECIPE)
