"""How many tokens a model can take. Asked before training, because a model says so only when a long row comes."""

from __future__ import annotations

from transformers import PreTrainedConfig

from hftune.errors import HftuneError

# These number positions from padding_idx + 1, so that many embeddings are never used.
_OFFSET_BY_PADDING = {
    "roberta",
    "xlm-roberta",
    "xlm-roberta-xl",
    "camembert",
    "roberta-prelayernorm",
    "data2vec-text",
}


def max_positions(config: PreTrainedConfig) -> int | None:
    """The longest input in tokens, or None where the architecture sets no limit."""
    values = config.to_dict()
    if values.get("position_biased_input") is False:
        return None  # DeBERTa-v2: relative positions only
    # Some families call it n_positions or block_size.
    limit = values.get(config.attribute_map.get("max_position_embeddings", "max_position_embeddings"))
    if not isinstance(limit, int) or limit <= 0:
        return None
    if config.model_type in _OFFSET_BY_PADDING:
        return limit - int(values.get("pad_token_id") or 0) - 1
    return limit


def check_length(config: PreTrainedConfig, max_length: int, virtual_tokens: int = 0) -> None:
    """Refuse a length that the model has no positions for, soft-prompt tokens counted in."""
    limit = max_positions(config)
    if limit is None or max_length + virtual_tokens <= limit:
        return
    if not virtual_tokens:
        raise HftuneError(
            f"data.max_seq_length is {max_length}, but this {config.model_type} model has {limit} positions",
            hint=f"use --max-length {limit} or less",
        )
    left = {"--max-length ": limit - virtual_tokens, "--set method.num_virtual_tokens=": limit - max_length}
    raise HftuneError(
        f"{max_length} tokens of text (data.max_seq_length) and {virtual_tokens} virtual tokens "
        "(method.num_virtual_tokens) "
        f"make {max_length + virtual_tokens}, but this {config.model_type} model has {limit} positions",
        hint=f"lower one of them: {' or '.join(f'{flag}{most}' for flag, most in left.items() if most > 0) or 'both'}",
    )
