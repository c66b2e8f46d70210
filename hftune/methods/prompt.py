"""Prompt tuning: trained embeddings in front of the text (Lester et al. 2021, arXiv:2104.08691)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from hftune.methods.method import VirtualTokens, prompt_shape

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hftune.methods.applied import Applied


class PromptMethod(VirtualTokens):
    """Trained embeddings in front of the text, and the head (prompt tuning)."""

    kind: Literal["prompt"] = "prompt"
    pretrained_learning_rate: ClassVar[float] = 1e-2
    scratch_learning_rate: ClassVar[float] = 1e-2
    formula: ClassVar[str] = "n·e"
    papers: ClassVar[tuple[str, ...]] = ("2104.08691",)

    def apply(self, model: PreTrainedModel, fresh_modules: Sequence[str]) -> Applied:
        """Put trained embeddings before those of the text; the head reads the first position, which is one of them."""
        from peft import PromptTuningConfig

        from hftune.methods.adapters import wrapped

        tokens, labels = self.num_virtual_tokens, model.config.num_labels
        width: int = model.get_input_embeddings().embedding_dim  # ELECTRA's is not its hidden size
        linear = f"{labels}d+{labels}"

        def formula(head: str) -> str:
            if head == linear and width == model.config.hidden_size:
                return f"{tokens + labels}d+{labels}"
            return f"{self.formula} + {head}"

        return wrapped(
            model,
            fresh_modules,
            PromptTuningConfig,
            {**prompt_shape(model, width), "num_virtual_tokens": tokens},
            formula=formula,
            letters={"n": tokens},
        )
