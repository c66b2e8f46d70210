"""A GPT from embedding to logits, as a Hugging Face model: Auto classes, generate, pipeline, Trainer.

Read it top to bottom: ``MLP`` and ``Block``, then ``MinGPTModel`` (tokens to hidden states), then
``MinGPTForCausalLM`` (hidden states to logits and loss). Attention is in ``attention_*.py``. These files are
copied into Hub repos with the weights, so they import torch, transformers and each other only.

Shapes: B batch, T new tokens, S tokens in all (cached ones and new ones), C width, V vocabulary.
"""

from __future__ import annotations

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

from .attention import attention_class
from .attention_base import CausalAttention, Layout, ResidualLinear
from .configuration_mingpt import MinGPTConfig


class MLP(nn.Module):
    """Each token on its own: widen, bend, narrow."""

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
        """[B, T, C] → [B, T, C], and attention weights [B, H, T, S] where wanted."""
        mixed, weights = self.attention(self.attention_norm(x), layout, want_weights)
        x = x + mixed
        return x + self.mlp(self.mlp_norm(x)), weights


class MinGPTPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """What transformers must know to build, save and load a minGPT."""

    config_class = MinGPTConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012 - the name and form transformers reads
    _supports_sdpa = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """GPT-2's initialization: N(0, 0.02), biases zero, smaller where 2 · layers outputs add up."""
        super()._init_weights(module)
        if isinstance(module, ResidualLinear):
            std = self.config.initializer_range / math.sqrt(2 * self.config.num_hidden_layers)
            init.normal_(module.weight, std=std)
        if isinstance(module, CausalAttention):
            module.init_parameters(self.config)

    def save_pretrained(self, save_directory: str | os.PathLike[str], **kwargs: Any) -> None:
        """Save; where the code goes along (see ``register``), name both classes, not only the one saved."""
        if self._auto_class is not None:
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
            input_ids: token ids [B, T]; or give ``inputs_embeds`` [B, T, C].
            attention_mask: 1 for real tokens, 0 for padding [B, S], on either side. Right padding needs none.
            position_ids: positions [B, T]; counted over real tokens where not given.
            past_key_values: keys and values of earlier tokens, extended in place.
            inputs_embeds: embeddings in place of ids.
            use_cache: keep keys and values; where not given, the config's choice, but not in training.
            output_attentions: also return the weights [B, H, T, S] of every layer.
            output_hidden_states: also return the input of every block and the final output.
            return_dict: False for a plain tuple.
            **kwargs: accepted for the callers of transformers, such as loss settings, and not used here.
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

        x = layout.pack(x)  # [B, T, C], padding last
        if self.position_embedding is not None:
            x = x + self.position_embedding(layout.position_ids)
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
    """Hidden states to next-token logits and, where labels are given, the loss."""

    _tied_weights_keys = {"lm_head.weight": "model.token_embedding.weight"}  # noqa: RUF012
    # The loss is a sum divided by num_items_in_batch where Trainer passes it, so accumulation and several
    # processes give the mean over all tokens, not a mean of means.
    accepts_loss_kwargs = True

    def __init__(self, config: MinGPTConfig) -> None:
        super().__init__(config)
        self.model = MinGPTModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        # With no length asked for, generation fills the block; transformers' own defaults know no such bound.
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
        """Logits of the next token, and the loss on ``labels`` [B, T] (shifted here; −100 is not scored).

        Args:
            input_ids: see ``MinGPTModel.forward``, as for the arguments not named here.
            attention_mask: as there.
            position_ids: as there.
            past_key_values: as there.
            inputs_embeds: as there.
            labels: the input ids again, with −100 wherever a token is not to be predicted.
            use_cache: as there; not by default where labels are given.
            logits_to_keep: only the last so many positions, or the positions in a tensor; 0 for all.
            return_dict: False for a plain tuple.
            **kwargs: ``num_items_in_batch`` and ``shift_labels`` for the loss, ``output_*`` for the model.
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

    def _prepare_generated_length(
        self, generation_config: GenerationConfig, has_default_max_length: bool, **lengths: Any
    ) -> GenerationConfig:
        """Bound generation at the block before the first token is made, not when it runs into the wall."""
        block = self.config.block_size
        prompt = max(lengths["input_ids_length"], lengths["inputs_tensor"].shape[1])
        if prompt >= block:
            raise ValueError(
                f"The prompt has {prompt} tokens, and block_size {block} leaves no room for another: "
                f"shorten the prompt to at most {block - 1} tokens."
            )
        if generation_config.max_new_tokens is not None and prompt + generation_config.max_new_tokens > block:
            raise ValueError(
                f"A prompt of {prompt} tokens and max_new_tokens={generation_config.max_new_tokens} exceed "
                f"block_size {block}: ask for at most {block - prompt} new tokens, or shorten the prompt."
            )
        if generation_config.max_new_tokens is None and (generation_config.max_length or 0) > block:
            raise ValueError(f"max_length={generation_config.max_length} exceeds block_size: ask for at most {block}.")
        # Our own default max_length is no request of the user's: max_new_tokens beside it is no conflict.
        ours = generation_config.max_length == self.generation_config.max_length
        by_default = has_default_max_length or (ours and generation_config.max_new_tokens is not None)
        return super()._prepare_generated_length(generation_config, by_default, **lengths)
