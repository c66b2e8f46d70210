"""``hftune classify``: fine-tune a classifier on single texts or pairs.

hftune classify
hftune classify --model huawei-noah/TinyBERT_General_4L_312D --data reviews.csv --seeds 1,2,3
hftune classify --model_name_or_path prajjwal1/bert-tiny --task_name sst2 --num_train_epochs 3 --output_dir runs/sst2
"""

from __future__ import annotations

from hftune.cli.flags import Typed, training_command
from hftune.cli.train import run_training

DEFAULT_RECIPE = "classify/reviews"


@training_command(task="classify")
def classify(typed: Typed) -> None:
    """Fine-tune a classifier on single texts or pairs: best checkpoint on validation, then test."""
    run_training(typed, task="classify", recipe=typed.recipe, default=DEFAULT_RECIPE)
