"""What every tuning method is: its settings, and ``apply``, which decides which parameters are trained.

A method is one file with one subclass of ``Method``, and one line in ``hftune.methods.METHODS``. Settings are needed
wherever a recipe is read, so these files import torch and peft only inside ``apply``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from hftune.config.section import Section

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hftune.methods.applied import Applied

VIRTUAL_TOKENS = "virtual_tokens"
PAST = "past_key_values"
"""What a method may need of an architecture; ``architectures.py`` lists who lacks it, and why."""


class Method(Section):
    """Settings of a tuning method. The docstring of a subclass is its help text."""

    kind: str
    pretrained_learning_rate: ClassVar[float]
    """Default learning rate for pretrained weights; ``Recipe`` fills it in when nobody set one."""
    scratch_learning_rate: ClassVar[float]
    """Default learning rate for a model from scratch."""
    formula: ClassVar[str] = ""
    """Number of trainable parameters of a BERT, without its head; formula.py explains the letters."""
    papers: ClassVar[tuple[str, ...]] = ()
    """Numbers on arXiv."""
    needs: ClassVar[tuple[str, ...]] = ()
    """What not every architecture has: ``VIRTUAL_TOKENS``, ``PAST``."""
    any_architecture: ClassVar[bool] = False
    """Whether it needs to know nothing of a model, so that it is not limited to the architectures that are listed."""
    is_adapter: ClassVar[bool] = True
    """Whether what it saves is an adapter, not a checkpoint."""
    trains_embeddings_path: ClassVar[bool] = True
    """Whether gradients reach the word embeddings of the text, which NEFTune perturbs."""
    not_causal: ClassVar[str] = ""
    """Why it is not for language models; empty where it is."""

    @property
    def positions(self) -> int:
        """Positions of the encoder that the method takes for itself."""
        return 0

    @property
    def required(self) -> tuple[str, ...]:
        """What this method, with these settings, needs of an architecture."""
        return self.needs

    def apply(self, model: PreTrainedModel, fresh_modules: Sequence[str]) -> Applied:
        """Freeze, wrap or leave the model. fresh_modules are those that did not come from the checkpoint."""
        raise NotImplementedError(f"{type(self).__name__} has no apply")


class VirtualTokens(Method):
    """A method that puts trained vectors in front of the text."""

    num_virtual_tokens: int = Field(default=20, ge=1)
    """Number of trained vectors before the text; they take positions of the encoder, so max_seq_length gets less."""

    needs: ClassVar[tuple[str, ...]] = (VIRTUAL_TOKENS,)
    trains_embeddings_path: ClassVar[bool] = False
    not_causal: ClassVar[str] = (
        "its trained vectors take positions from every block, and every later text must make room for them"
    )

    @property
    def positions(self) -> int:
        """One for each virtual token."""
        return self.num_virtual_tokens


def prompt_shape(model: PreTrainedModel, token_dim: int) -> dict[str, Any]:
    """What peft would guess from names in the configuration, which not every architecture has."""
    return {
        "token_dim": token_dim,
        "num_layers": model.config.num_hidden_layers,
        "num_attention_heads": model.config.num_attention_heads,
    }
