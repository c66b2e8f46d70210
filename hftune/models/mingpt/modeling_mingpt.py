"""A GPT from embedding to logits, as a Hugging Face model: Auto classes, generate, pipeline, Trainer.

Read it top to bottom: ``MLP`` and ``Block``, then ``MinGPTModel`` (tokens to hidden states), then
``MinGPTForCausalLM`` (hidden states to logits and loss). Attention is in ``attention_*.py``. These files are
copied into Hub repos with the weights, so they import torch, transformers and each other only.

Shapes: B batch, T new tokens, S tokens in all (cached ones and new ones), C width, V vocabulary.
"""

from __future__ import annotations

import copy
import math
import os
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from .attention_base import CausalAttention, Layout, ResidualLinear, VanillaAttention
from .attention_bigbird import BigBirdAttention
from .attention_linformer import LinformerAttention
from .attention_performer import PerformerAttention
from .attention_rope import RopeAttention
from .attention_synthesizer import SynthesizerAttention
from .configuration_mingpt import MinGPTConfig

ATTENTION: dict[str, type[CausalAttention]] = {
    "vanilla": VanillaAttention,
    "rope": RopeAttention,
    "synthesizer": SynthesizerAttention,
    "performer": PerformerAttention,
    "bigbird": BigBirdAttention,
    "linformer": LinformerAttention,
}


def attention_class(name: str) -> type[CausalAttention]:
    """The class behind ``config.attention``."""
    if name not in ATTENTION:
        raise ValueError(f"attention is {name!r}; choose one of {', '.join(ATTENTION)}.")
    return ATTENTION[name]


class MLP(nn.Module):
    """The MLP, applied to each token alone: a wider layer, a nonlinearity, and back to the hidden size."""

    def __init__(self, config: MinGPTConfig) -> None:
        super().__init__()
        inner = config.intermediate_size or 4 * config.hidden_size
        self.up = nn.Linear(config.hidden_size, inner)
        self.act = nn.GELU(approximate="tanh")
        self.down = ResidualLinear(inner, config.hidden_size)
        self.dropout = nn.Dropout(config.residual_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] → [B, T, C]."""
        y: Tensor = self.dropout(self.down(self.act(self.up(x))))  # C → 4C → C
        return y


class Block(GradientCheckpointingLayer):  # type: ignore[misc]
    """Attention moves information between tokens, the MLP works on each; both add to the residual stream."""

    def __init__(self, config: MinGPTConfig, layer_index: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.attention = attention_class(config.attention)(config, layer_index)
        self.mlp_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, layout: Layout, want_weights: bool) -> tuple[Tensor, Tensor | None]:
        """[B, T, C] → [B, T, C], and attention weights [B, H, T, S] on request."""
        # Pre-norm, as in GPT-2: the residual stream itself is never rescaled, so gradients keep their size from the
        # last layer to the first (Xiong et al. 2020, arXiv:2002.04745).
        mixed, weights = self.attention(self.attention_norm(x), layout, want_weights)
        x = x + mixed
        return x + self.mlp(self.mlp_norm(x)), weights


class MinGPTPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """What transformers must know to build, save and load a minGPT.

    The names with an underscore are those that transformers documents for the authors of models.
    """

    config_class = MinGPTConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012 - device_map and FSDP keep the residual stream of a block on one device
    _supports_sdpa = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """GPT-2's initialization: N(0, 0.02), biases zero; residual projections scaled by 1/√(2 · layers)."""
        super()._init_weights(module)
        if isinstance(module, ResidualLinear):
            # Each layer adds two outputs to the residual stream, and variances add up.
            std = self.config.initializer_range / math.sqrt(2 * self.config.num_hidden_layers)
            init.normal_(module.weight, std=std)
        if isinstance(module, CausalAttention):
            module.init_parameters(self.config)

    def save_pretrained(self, save_directory: str | os.PathLike[str], **kwargs: Any) -> None:
        """Save; if the code is saved too (see ``register``), ``auto_map`` names both classes, not only this one."""
        if self.is_remote_code():
            self.config.auto_map = {
                "AutoModel": "modeling_mingpt.MinGPTModel",
                "AutoModelForCausalLM": "modeling_mingpt.MinGPTForCausalLM",
            }
        super().save_pretrained(save_directory, **kwargs)


class MinGPTModel(MinGPTPreTrainedModel):
    """Tokens to hidden states."""

    def __init__(self, config: MinGPTConfig) -> None:
        super().__init__(config)
        self.token_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embedding = (
            nn.Embedding(config.block_size, config.hidden_size)
            if attention_class(config.attention).learned_positions
            else None
        )
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.blocks = nn.ModuleList(Block(config, index) for index in range(config.num_hidden_layers))
        self.final_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The token embedding."""
        return self.token_embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the token embedding, as ``resize_token_embeddings`` does."""
        self.token_embedding = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run the blocks over new tokens [B, T], after those in ``past_key_values``.

        Args:
            input_ids: Token ids [B, T].
            attention_mask: 1 for real tokens, 0 for padding [B, S], on either side. Right padding needs none.
            position_ids: Positions [B, T]; by default real tokens are counted.
            past_key_values: Keys and values of earlier tokens, extended in place.
            inputs_embeds: Embeddings [B, T, C] in place of ids.
            use_cache: Keep keys and values; by default ``config.use_cache``, and never in training.
            output_attentions: Also return the weights [B, H, T, S] of every layer.
            output_hidden_states: Also return the input of every block and the final output.
            return_dict: False for a plain tuple.
            **kwargs: Ignored; transformers passes settings of the loss.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give either input_ids or inputs_embeds, one of the two.")
        x = self.token_embedding(input_ids) if inputs_embeds is None else inputs_embeds  # [B, T, C]
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        self._check_length(x.shape[1], past_key_values)
        layout = Layout.build(x, attention_mask, position_ids, past_key_values)

        x = layout.pack(x)  # [B, T, C], padding last: Layout explains why
        if self.position_embedding is not None:
            x = x + self.position_embedding(layout.position_ids)  # [B or 1, T, C]
        x = self.dropout(x)
        want_weights = bool(self.config.output_attentions if output_attentions is None else output_attentions)
        want_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        states, attentions = [], []
        for block in self.blocks:
            states.append(x)
            x, weights = block(x, layout, want_weights)  # [B, T, C]
            attentions.append(weights)
        x = layout.unpack(self.final_norm(x))  # [B, T, C], every token back in its slot

        output = BaseModelOutputWithPast(
            last_hidden_state=x,
            past_key_values=past_key_values if use_cache else None,
            hidden_states=(*(layout.unpack(state) for state in states), x) if want_states else None,
            attentions=tuple(attentions) if want_weights else None,
        )
        return output.to_tuple() if return_dict is False else output

    def _check_length(self, new: int, cache: Cache | None) -> None:
        past = 0 if cache is None else int(cache.get_seq_length())
        if past + new > self.config.block_size:
            raise ValueError(
                f"The sequence has {past + new} tokens ({past} cached, {new} new), but this model was built "
                f"with block_size {self.config.block_size}. Shorten the input, generate fewer tokens "
                "(max_new_tokens), or build and train a model with a larger block_size."
            )


class MinGPTForCausalLM(MinGPTPreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """Hidden states to the logits of the next token, and the loss if there are labels."""

    _tied_weights_keys = {"lm_head.weight": "model.token_embedding.weight"}  # noqa: RUF012
    # The loss is a sum divided by the num_items_in_batch that Trainer passes. So gradient accumulation and several
    # processes give the mean over all tokens of a step, not a mean of means, in which the tokens of a short batch
    # would count more.
    accepts_loss_kwargs = True

    def __init__(self, config: MinGPTConfig) -> None:
        super().__init__(config)
        self.model = MinGPTModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        # By default generation fills the block; transformers' own default is a few tokens, and no bound at all.
        self.generation_config.max_length = config.block_size
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Logits of the next token [B, T, V], and the loss on ``labels``; other arguments as in ``MinGPTModel``.

        ``labels`` [B, T] are the input ids, with −100 for tokens that are not scored; they are shifted here. Only the
        last ``logits_to_keep`` positions get logits, or those in a tensor; 0 means all. The loss also reads
        ``num_items_in_batch`` and ``shift_labels``.
        """
        if use_cache is None and labels is not None:
            use_cache = False
        hidden = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )
        x = hidden.last_hidden_state  # [B, T, C]
        if isinstance(logits_to_keep, Tensor):
            x = x[:, logits_to_keep]
        elif logits_to_keep:
            x = x[:, -logits_to_keep:]
        logits = self.lm_head(x)  # [B, T, V]
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
        output = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=hidden.past_key_values,
            hidden_states=hidden.hidden_states,
            attentions=hidden.attentions,
        )
        return output.to_tuple() if return_dict is False else output

    def generate(
        self, inputs: Tensor | None = None, generation_config: GenerationConfig | None = None, **kwargs: Any
    ) -> Any:
        """Transformers' ``generate``; what does not fit into the block is refused before the first token is made.

        transformers would run until a position has no embedding, and end in an IndexError.
        """
        own = self.generation_config
        settings = copy.deepcopy(own if generation_config is None else generation_config)
        rest = settings.update(**kwargs)  # arguments that are no generation settings
        given = [tokens for tokens in (inputs, rest.get("input_ids"), rest.get("inputs_embeds")) if tokens is not None]
        prompt = max((tokens.shape[1] for tokens in given), default=1)  # each [B, T] or [B, T, C]
        new = own.max_new_tokens if settings.max_new_tokens is None else settings.max_new_tokens
        self._check_room(prompt, new, settings.max_length)
        if new is not None and own.max_new_tokens is None:
            # As a length, because transformers warns of max_new_tokens next to the max_length that __init__ has set.
            settings.max_length, settings.max_new_tokens = prompt + new, None
        return super().generate(inputs, generation_config=settings, **rest)

    def _check_room(self, prompt: int, new: int | None, longest: int | None) -> None:
        block = self.config.block_size
        if prompt >= block:
            raise ValueError(
                f"The prompt has {prompt} tokens, and block_size {block} leaves no room for another: "
                f"shorten the prompt to at most {block - 1} tokens."
            )
        if new is not None and prompt + new > block:
            raise ValueError(
                f"A prompt of {prompt} tokens and max_new_tokens={new} exceed block_size {block}: use at most "
                f"{block - prompt} new tokens, or shorten the prompt."
            )
        if new is None and (longest or 0) > block:
            raise ValueError(f"max_length={longest} exceeds block_size: use at most {block}.")
