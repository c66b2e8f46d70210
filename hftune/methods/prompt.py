"""Prompt tuning: trained embeddings in front of the text (Lester et al. 2021, arXiv:2104.08691)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from hftune.methods.method import VirtualTokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class PromptMethod(VirtualTokens):
    """Trained embeddings in front of the text, and the head (prompt tuning)."""

    kind: Literal["prompt"] = "prompt"
    pretrained_learning_rate: ClassVar[float] = 1e-2
    scratch_learning_rate: ClassVar[float] = 1e-2
    formula: ClassVar[str] = "n·e"
    papers: ClassVar[tuple[str, ...]] = ("2104.08691",)
    config_class: ClassVar[str] = "PromptTuningConfig"

    def full_formula(self, model: PreTrainedModel, head: str) -> str:
        """With a linear head on vectors of its size, which reads the first trained one, the two are one sum."""
        tokens, labels = self.num_virtual_tokens, model.config.num_labels
        if head == f"{labels}d+{labels}" and self.width(model) == model.config.hidden_size:
            return f"{tokens + labels}d+{labels}"
        return super().full_formula(model, head)
