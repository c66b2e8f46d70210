"""The configuration of a classifier with mean or max pooling, saved as config.json.

This file is copied into Hub repositories with the weights, so it imports nothing but transformers.
"""

from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

POOLINGS = ("mean", "max")


class PooledEncoderConfig(PreTrainedConfig):  # type: ignore[misc]
    """An encoder, and how the vectors of its tokens become the one that is classified.

    It has a ``model_type`` of its own, not the encoder's: otherwise transformers would silently load its class for that
    encoder if the code is not trusted, with another head and random weights in it.

    Args:
        encoder_config: configuration of the encoder, an architecture of transformers; as a dict in config.json.
        pooling: mean or max, over all tokens that are not padding.
        classifier_dropout: dropout of the pooled vector in training.
        pad_token_id: as in the encoder.
    """

    model_type = "pooled_encoder"
    sub_configs = {"encoder_config": AutoConfig}  # noqa: RUF012 - the name and form transformers reads

    encoder_config: Any = None  # a dict until __post_init__
    pooling: str = "mean"
    classifier_dropout: float = 0.1
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        """Make the encoder's configuration; refuse one of an architecture that transformers does not have."""
        given = self.encoder_config
        if not isinstance(given, PreTrainedConfig):
            # transformers makes one without arguments to see which values are defaults.
            values = dict(given or {"model_type": "bert"})
            kind = values.pop("model_type", None)
            if kind not in CONFIG_MAPPING or kind == self.model_type:
                raise ValueError(f"encoder_config.model_type is {kind!r}, which is no encoder of transformers.")
            values.pop("auto_map", None)  # only classes of transformers: an encoder brings no code
            self.encoder_config = CONFIG_MAPPING[kind].from_dict(values)
        super().__post_init__(**kwargs)
        if self.pooling not in POOLINGS:
            raise ValueError(f"pooling is {self.pooling!r}; it must be one of {', '.join(POOLINGS)}.")
        if not 0.0 <= self.classifier_dropout < 1.0:
            raise ValueError(f"classifier_dropout is {self.classifier_dropout}; it must be at least 0 and below 1.")

    # What other libraries read of a configuration is that of the encoder.

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return int(self.encoder_config.vocab_size)

    @property
    def hidden_size(self) -> int:
        """Size of the pooled vector."""
        return int(self.encoder_config.hidden_size)

    @property
    def num_hidden_layers(self) -> int:
        """Layers of the encoder."""
        return int(self.encoder_config.num_hidden_layers)

    @property
    def num_attention_heads(self) -> int:
        """Attention heads of a layer."""
        return int(self.encoder_config.num_attention_heads)
