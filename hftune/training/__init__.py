"""Training: arguments, batch order, the trainer, checkpoints, dropout. The pipeline uses ``build`` and ``fit``."""

from hftune.training.assembly import build
from hftune.training.fitting import Fitted, fit
from hftune.training.inputs import TrainingInputs
from hftune.training.trainer import HftuneTrainer

__all__ = ["Fitted", "HftuneTrainer", "TrainingInputs", "build", "fit"]
