"""P-tuning: embeddings in front of the text, computed by a small network (Liu et al. 2021, arXiv:2103.10385)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from hftune.methods.method import VirtualTokens, prompt_shape

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hftune.methods.applied import Applied


class PTuningMethod(VirtualTokens):
    """Embeddings in front of the text that a small network makes, and the head (P-tuning)."""

    kind: Literal["ptuning"] = "ptuning"
    encoder_hidden_size: int | None = Field(default=None, ge=1)
    """Width of the prompt encoder; that of the word embeddings by default."""
    pretrained_learning_rate: ClassVar[float] = 1e-3
    scratch_learning_rate: ClassVar[float] = 1e-3
    formula: ClassVar[str] = "n·e + 2·h·e + h² + 2h + e"
    papers: ClassVar[tuple[str, ...]] = ("2103.10385",)

    def apply(self, model: PreTrainedModel, fresh_modules: Sequence[str]) -> Applied:
        """Put a prompt encoder in front; only the embeddings that it computes are saved."""
        from peft import PromptEncoderConfig

        from hftune.methods.adapters import wrapped

        width: int = model.get_input_embeddings().embedding_dim
        size = self.encoder_hidden_size or width
        return wrapped(
            model,
            fresh_modules,
            PromptEncoderConfig,
            {
                **prompt_shape(model, width),
                "num_virtual_tokens": self.num_virtual_tokens,
                "encoder_hidden_size": size,
            },
            formula=lambda head: f"{self.formula} + {head}",
            letters={"n": self.num_virtual_tokens, "h": size},
        )
