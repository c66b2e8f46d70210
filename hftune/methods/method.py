"""The base class of the tuning methods, and which method works with which architecture.

A method is one file with one subclass of ``Method``, and one line in ``hftune.methods.METHODS``. A recipe is made of
these settings, so these files import torch and peft only inside ``apply``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from hftune.config.section import Section
from hftune.errors import HftuneError
from hftune.models.settings import encoder_config

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import PreTrainedConfig, PreTrainedModel

    from hftune.methods.applied import Applied

VIRTUAL_TOKENS, PAST = "virtual_tokens", "past_key_values"
"""What a method may need of an architecture; ``ARCHITECTURES`` has the ones without it, and why."""


class Method(Section):
    """Settings of a tuning method. The docstring of a subclass is its help text."""

    kind: str
    pretrained_learning_rate: ClassVar[float]
    """Default learning rate for pretrained weights."""
    scratch_learning_rate: ClassVar[float]
    """Default learning rate for a model from scratch."""
    formula: ClassVar[str] = ""
    """Number of trainable parameters of a BERT, without its head; applied.py explains the letters."""
    papers: ClassVar[tuple[str, ...]] = ()
    """Numbers on arXiv."""
    needs: ClassVar[tuple[str, ...]] = ()
    """What not every architecture has: ``VIRTUAL_TOKENS``, ``PAST``."""
    any_architecture: ClassVar[bool] = False
    """Whether it works with architectures that are not in ``ARCHITECTURES``, because it needs to know nothing of
    them."""
    trains_embeddings_path: ClassVar[bool] = True
    """Whether gradients reach the word embeddings of the text, which NEFTune perturbs."""
    not_causal: ClassVar[str] = ""
    """Why it does not work with language models; empty if it does."""

    @property
    def positions(self) -> int:
        """Positions of the encoder that the method takes."""
        return 0

    def check(self, config: PreTrainedConfig) -> None:
        """Refuse settings that can't work with this model, before any data is read."""

    def apply(self, model: PreTrainedModel, fresh_modules: Sequence[str]) -> Applied:
        """Freeze, wrap or leave the model. fresh_modules are those that the checkpoint lacks."""
        raise NotImplementedError(f"{type(self).__name__} has no apply")


class AdapterMethod(Method):
    """A method that wraps the model with an adapter of peft, and saves the adapter."""

    config_class: ClassVar[str] = ""
    """Name of peft's configuration class."""

    @property
    def linear_targets(self) -> bool:
        """Whether the modules that it adapts must be linear layers."""
        return True

    def settings(self, model: PreTrainedModel) -> dict[str, Any]:
        """The arguments of the configuration class for this model, without the task and the modules to save."""
        raise NotImplementedError(f"{type(self).__name__} has no settings")

    def full_formula(self, model: PreTrainedModel, head: str) -> str:
        """The formula with that of the head; empty for a method without one."""
        return f"{self.formula} + {head}" if self.formula else ""

    def letters(self, model: PreTrainedModel) -> dict[str, int]:
        """Values of the letters of the method's own settings in its formula."""
        return {}

    def make_config(self, **settings: Any) -> PeftConfig:
        """Peft's configuration."""
        import peft

        made: PeftConfig = getattr(peft, self.config_class)(**settings)
        return made

    def apply(self, model: PreTrainedModel, fresh_modules: Sequence[str]) -> Applied:
        """Wrap the model with the adapter."""
        from hftune.methods.applied import wrapped

        return wrapped(self, model, fresh_modules)


class VirtualTokens(AdapterMethod):
    """A method that puts trained vectors in front of the text."""

    num_virtual_tokens: int = Field(default=20, ge=1)
    """Number of trained vectors before the text; with max_seq_length they must fit the encoder's positions."""

    needs: ClassVar[tuple[str, ...]] = (VIRTUAL_TOKENS,)
    trains_embeddings_path: ClassVar[bool] = False
    not_causal: ClassVar[str] = (
        "its trained vectors take positions from every block, and every later text must make room for them"
    )

    @property
    def positions(self) -> int:
        """One for each virtual token."""
        return self.num_virtual_tokens

    def width(self, model: PreTrainedModel) -> int:
        """Size of the trained vectors: that of the word embeddings, which is not ELECTRA's hidden size."""
        size: int = model.get_input_embeddings().embedding_dim
        return size

    def settings(self, model: PreTrainedModel) -> dict[str, Any]:
        """Sizes that peft would read from the configuration under names that not every architecture has."""
        return {
            "num_virtual_tokens": self.num_virtual_tokens,
            "token_dim": self.width(model),
            "num_layers": model.config.num_hidden_layers,
            "num_attention_heads": model.config.num_attention_heads,
        }

    def letters(self, model: PreTrainedModel) -> dict[str, int]:
        """The number of vectors."""
        return {"n": self.num_virtual_tokens}


NO_PAST = {PAST: "its attention takes no keys and values from outside, and a prefix consists of them"}
LAST_TOKEN = {
    VIRTUAL_TOKENS: "it reads the last token of a text, and can't tell it from padding that follows trained vectors"
}


@dataclass(frozen=True)
class Architecture:
    """What the methods need to know of a model type."""

    lora: tuple[str, ...]
    """Suffixes of the names of the query and value projections."""
    ia3: tuple[str, ...]
    """Suffixes of the key and value projections."""
    ia3_feedforward: tuple[str, ...]
    """Suffixes of the layers whose input is rescaled."""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """What its classifiers lack that some methods need, and why."""


_BERT = Architecture(("query", "value"), ("key", "value"), ("output.dense",))
_DEBERTA = Architecture(("query_proj", "value_proj"), ("key_proj", "value_proj"), ("output.dense",), NO_PAST)
ARCHITECTURES: dict[str, Architecture] = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "camembert": _BERT,
    "electra": _BERT,
    # All layers share one set of weights, so an adapter is small.
    "albert": Architecture(("query", "value"), ("key", "value"), ("ffn_output",), NO_PAST),
    "mpnet": Architecture(("attn.q", "attn.v"), ("attn.k", "attn.v"), ("output.dense",), NO_PAST),
    "distilbert": Architecture(("q_lin", "v_lin"), ("k_lin", "v_lin"), ("ffn.lin2",), NO_PAST),
    "deberta-v2": _DEBERTA,
    # One matrix computes query, key and value here.
    "modernbert": Architecture(("Wqkv",), ("Wqkv",), ("mlp.Wo",), NO_PAST),
    "gpt2": Architecture(("c_attn",), ("c_attn",), ("mlp.c_proj",), LAST_TOKEN),
    "mingpt": Architecture(("qkv",), ("qkv",), ("mlp.down",), LAST_TOKEN),
}
"""By ``model_type``. XLM-RoBERTa and CamemBERT are RoBERTa's code under another name."""


def check(
    section: Method, config: PreTrainedConfig, *, gradient_checkpointing: bool = False, causal: bool = False
) -> None:
    """Refuse a method that this architecture or another setting rules out, with the reason and one that would work.

    ``causal`` tells a language model from a classifier. The weights are not needed.
    """
    if causal and section.not_causal:
        raise HftuneError(
            f"--method {section.kind} is not for language models: {section.not_causal}",
            hint="use --method full, lora, ia3 or bitfit",
        )
    section.check(config)
    config = encoder_config(config)
    known = ARCHITECTURES.get(config.model_type)
    lacks = known.lacks if known else {}
    if known is None and not section.any_architecture:
        _check_unknown(section, config.model_type)
    reason = next((lacks[need] for need in section.needs if need in lacks), None)
    if reason is not None:
        prompt = (
            "" if VIRTUAL_TOKENS in lacks else "--method prompt, which puts trained embeddings before the text, or "
        )
        raise HftuneError(
            f"--method {section.kind} does not work with {config.model_type} models: {reason}",
            hint=f"use {prompt}--method lora",
        )
    if PAST in section.needs and gradient_checkpointing:
        raise HftuneError(
            "prefix tuning does not work with train.gradient_checkpointing: when activations are computed again, the "
            "prefix would be there twice",
            hint="leave train.gradient_checkpointing out, or use --method lora",
        )


def _check_unknown(section: Method, model_type: str) -> None:
    """Refuse an architecture that is not listed, unless the recipe names the layers."""
    if "target_modules" in type(section).model_fields:
        if vars(section)["target_modules"]:
            return
        raise HftuneError(
            f"{section.kind} does not know the layers of {model_type} models",
            hint="name them with --set method.target_modules=[…], or use --method bitfit, which works with every model",
        )
    tested = [name for name, entry in ARCHITECTURES.items() if not entry.lacks.keys() & set(section.needs)]
    raise HftuneError(
        f"{section.kind} is not known to work with {model_type} models; it works with {', '.join(tested)}",
        hint="use --method full, head or bitfit, which work with every model",
    )
