"""``hftune joint``: a classifier and a masked language model, trained together on labeled and unlabeled text.

hftune joint
hftune joint --data reviews --max_train_samples 50 --unlabeled reviews --mlm_alpha 1 --seeds 1-5
hftune joint --model RUN --data train.csv --unlabeled more.txt --block_size 128 --mlm_alpha 1 --mlm_alpha_end 0
"""

from __future__ import annotations

from hftune.cli.flags import Typed, training_command
from hftune.cli.train import run_training

DEFAULT_RECIPE = "joint/reviews"


@training_command(task="joint")
def joint(typed: Typed) -> None:
    """Fine-tune a classifier and train a masked language model on unlabeled text, in one model at the same time.

    The classifier's validation score selects the checkpoint. A plain classifier is saved, and the masked language
    model next to it.
    """
    run_training(typed, task="joint", recipe=typed.recipe, default=DEFAULT_RECIPE)
