"""How many operations a token takes: a convention, so that speed can be told as a share of what the device could do."""

from __future__ import annotations

from transformers import PreTrainedModel


def token_operations(model: PreTrainedModel, length: float) -> float:
    """Of one training step, for a causal model.

    Six a weight (two forward, four backward), embeddings left out, and those of causal attention over so many tokens.
    """
    weights = int(model.num_parameters(exclude_embeddings=True))
    return 6 * weights + 6 * int(model.config.num_hidden_layers) * int(model.config.hidden_size) * length
