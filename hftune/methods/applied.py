"""What every method returns: the model with the right weights frozen, and the count of those that are not."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

from hftune.methods.accounting import Parameters


@dataclass(frozen=True)
class Applied:
    """A model on which a method was applied."""

    model: PreTrainedModel
    parameters: Parameters
