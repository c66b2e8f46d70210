"""The configuration of a minGPT, saved as config.json.

This file is copied into Hub repositories with the weights, so it imports nothing but transformers.
"""

from typing import Any

from transformers import PreTrainedConfig


class MinGPTConfig(PreTrainedConfig):  # type: ignore[misc]
    """Sizes, dropout and attention of a minGPT.

    The defaults are a small character model with 3.3 million parameters. Dropout is 0 by default: fused attention on a
    CPU needs ``attention_dropout`` to be 0, and drawing masks there costs as much as the layers themselves.

    Args:
        vocab_size: number of tokens.
        block_size: longest sequence, prompt and generated tokens together.
        hidden_size: width of the residual stream.
        num_hidden_layers: number of blocks.
        num_attention_heads: heads per block; must divide ``hidden_size``.
        intermediate_size: width inside the MLP; 4 × ``hidden_size`` by default.
        attention: a name in ``ATTENTION``: vanilla, rope, synthesizer, performer, bigbird, linformer.
        embedding_dropout: dropout after the embeddings.
        residual_dropout: dropout at the end of attention and MLP, before they join the residual stream.
        attention_dropout: dropout of attention weights.
        layer_norm_epsilon: added to the variance in every layer norm.
        initializer_range: standard deviation of the random initialization.
        tie_word_embeddings: whether the output layer is the token embedding.
        use_cache: whether keys and values are kept while generating.
        rope_base: rope: wavelengths grow geometrically from 2π to 2π × this.
        performer_features: performer: random features per head.
        bigbird_block: bigbird: tokens per block.
        bigbird_window: bigbird: blocks seen up to and including a token's own.
        bigbird_global: bigbird: first blocks of the sequence, which every block attends to.
        bigbird_random: bigbird: blocks drawn from between the global ones and the window.
        bigbird_seed: bigbird: seed of the random blocks, together with layer and block.
        linformer_block: linformer: tokens per block; a block is compressed once it is complete.
        linformer_rank: linformer: summary vectors the whole past is compressed to.
    """

    model_type = "mingpt"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 - the name and form transformers reads
    attribute_map = {"max_position_embeddings": "block_size"}  # noqa: RUF012

    vocab_size: int = 256
    block_size: int = 128
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_attention_heads: int = 8
    intermediate_size: int | None = None
    attention: str = "vanilla"
    embedding_dropout: float = 0.0
    residual_dropout: float = 0.0
    attention_dropout: float = 0.0
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    rope_base: float = 10_000.0
    performer_features: int = 128
    bigbird_block: int = 16
    bigbird_window: int = 3
    bigbird_global: int = 1
    bigbird_random: int = 2
    bigbird_seed: int = 0
    linformer_block: int = 32
    linformer_rank: int = 16

    def __post_init__(self, **kwargs: Any) -> None:
        """Refuse shapes that can't be built."""
        super().__post_init__(**kwargs)
        for name in ("vocab_size", "block_size", "hidden_size", "num_hidden_layers", "num_attention_heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} can't be split over {self.num_attention_heads} heads: "
                "make hidden_size a multiple of num_attention_heads."
            )
        for name in ("embedding_dropout", "residual_dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 0 and below 1.")
        self._check_variant()

    def _check_variant(self) -> None:
        """Settings that only one attention variant reads, checked for that variant only."""
        if self.attention == "rope" and self.head_size % 2:
            raise ValueError(
                f"rope turns pairs of channels, and a head of {self.head_size} is odd: "
                "choose hidden_size / num_attention_heads even."
            )
        if self.attention == "performer" and self.performer_features < 1:
            raise ValueError("performer_features must be at least 1.")
        if self.attention_dropout > 0 and "attention_dropout" not in self.dropouts:
            raise ValueError(
                "performer never forms attention weights, so there is nothing for attention_dropout to drop: "
                "set attention_dropout to 0 (residual_dropout works)."
            )
        if self.attention == "bigbird" and (
            min(self.bigbird_block, self.bigbird_window) < 1 or min(self.bigbird_global, self.bigbird_random) < 0
        ):
            raise ValueError("bigbird_block and bigbird_window must be at least 1, global and random at least 0.")
        if self.attention == "linformer" and not (
            1 <= self.linformer_block < self.block_size and self.linformer_rank >= 1
        ):
            raise ValueError(
                f"linformer compresses complete past blocks: linformer_block {self.linformer_block} must be "
                f"at least 1 and below block_size {self.block_size}, and linformer_rank "
                f"{self.linformer_rank} at least 1."
            )

    @property
    def head_size(self) -> int:
        """Channels per head."""
        return int(self.hidden_size) // int(self.num_attention_heads)

    @property
    def dropouts(self) -> tuple[str, ...]:
        """Settings of the dropouts that the variant has."""
        always = ("embedding_dropout", "residual_dropout")
        return always if self.attention == "performer" else (*always, "attention_dropout")
