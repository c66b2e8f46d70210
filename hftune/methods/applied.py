"""What every method returns: the model with the right weights frozen, what is trained of it, and what is saved."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from hftune.methods.accounting import Parameters


def itself(model: PreTrainedModel) -> PreTrainedModel:
    """Nothing is left to do after training."""
    return model


@dataclass(frozen=True)
class Precomputed:
    """The model split in two: a frozen part that runs once over the rows, and the rest, trained on its output."""

    trained: nn.Module
    """Takes ``inputs_embeds`` of one position a row; shares its weights with the whole model."""
    encode: Callable[[Mapping[str, Tensor]], Tensor]
    """A batch of token ids → what the frozen part makes of each row, (rows, d)."""


@dataclass(frozen=True)
class Applied:
    """A model on which a method was applied."""

    model: PreTrainedModel
    """The whole model: token ids in, logits out."""
    parameters: Parameters
    precomputed: Precomputed | None = None
    """Set where the frozen part can run once instead of once an epoch."""
    finish: Callable[[Any], PreTrainedModel] = itself
    """The trained model → the one that is saved; merges an adapter where that was asked for."""

    def so_far(self) -> PreTrainedModel:
        """What would be saved now, in the middle of training, which goes on with the model as it is."""
        # What finish does to a model can't be undone: it gets a copy.
        return self.model if self.finish is itself else self.finish(copy.deepcopy(self.model))

    @property
    def trained(self) -> nn.Module:
        """What the trainer gets."""
        return self.precomputed.trained if self.precomputed else self.model
