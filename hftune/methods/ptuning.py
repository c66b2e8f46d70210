"""P-tuning: embeddings in front of the text, computed by a small network (Liu et al. 2021, arXiv:2103.10385)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from hftune.methods.method import VirtualTokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class PTuningMethod(VirtualTokens):
    """Embeddings in front of the text, computed by a small network, and the head (P-tuning)."""

    kind: Literal["ptuning"] = "ptuning"
    encoder_hidden_size: int | None = Field(default=None, ge=1)
    """Width of the prompt encoder; that of the word embeddings by default."""
    pretrained_learning_rate: ClassVar[float] = 1e-3
    scratch_learning_rate: ClassVar[float] = 1e-3
    # Embeddings n·e; three layers, from e to h, from h to h and from h to e, with their biases.
    formula: ClassVar[str] = "n·e + 2·h·e + h² + 2h + e"
    papers: ClassVar[tuple[str, ...]] = ("2103.10385",)
    config_class: ClassVar[str] = "PromptEncoderConfig"

    def settings(self, model: PreTrainedModel) -> dict[str, Any]:
        """A prompt encoder; only the embeddings that it computes are saved."""
        return {**super().settings(model), "encoder_hidden_size": self.encoder_hidden_size or self.width(model)}

    def letters(self, model: PreTrainedModel) -> dict[str, int]:
        """The number of vectors, and the width of the network."""
        return {**super().letters(model), "h": self.encoder_hidden_size or self.width(model)}
