"""(IA)³: trained factors for keys, values and feed-forward activations (Liu et al. 2022, arXiv:2205.05638)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import model_validator

from hftune.methods.method import ARCHITECTURES, AdapterMethod
from hftune.models.settings import encoder_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Ia3Method(AdapterMethod):
    """Trained factors for keys, values and feed-forward activations, and the head ((IA)³)."""

    kind: Literal["ia3"] = "ia3"
    target_modules: tuple[str, ...] | None = None
    """Suffixes of the modules to rescale; keys, values and feed-forward by default."""
    feedforward_modules: tuple[str, ...] = ()
    """Those of target_modules whose input is rescaled, not their output; only together with target_modules."""
    merge: bool = False
    """Merge the trained adapter into the weights and save a plain checkpoint."""
    pretrained_learning_rate: ClassVar[float] = 5e-3
    scratch_learning_rate: ClassVar[float] = 5e-3
    # Keys and values; the attention's output and the feed-forward output, whose inputs are d and f wide.
    formula: ClassVar[str] = "3·L·d + L·f"
    papers: ClassVar[tuple[str, ...]] = ("2205.05638",)
    config_class: ClassVar[str] = "IA3Config"

    @model_validator(mode="after")
    def _feedforward_among_targets(self) -> Ia3Method:
        strange = [name for name in self.feedforward_modules if name not in (self.target_modules or ())]
        if strange:
            raise ValueError(
                f"feedforward_modules names {strange[0]!r}, which is not among target_modules; name it in both, or "
                "leave both out"
            )
        return self

    def settings(self, model: PreTrainedModel) -> dict[str, Any]:
        """Factors for the layers that are named, or for keys, values and feed-forward inputs."""
        if self.target_modules:
            targets, feedforward = self.target_modules, self.feedforward_modules
        else:
            known = ARCHITECTURES[encoder_config(model.config).model_type]
            targets, feedforward = (*known.ia3, *known.ia3_feedforward), known.ia3_feedforward
        return {"target_modules": list(targets), "feedforward_modules": list(feedforward)}
