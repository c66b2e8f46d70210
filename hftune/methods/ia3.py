"""(IA)³: trained factors for keys, values and feed-forward activations (Liu et al. 2022, arXiv:2205.05638)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import model_validator

from hftune.methods.architectures import ARCHITECTURES
from hftune.methods.method import Method

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hftune.methods.applied import Applied


class Ia3Method(Method):
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

    @model_validator(mode="after")
    def _feedforward_among_targets(self) -> Ia3Method:
        strange = [name for name in self.feedforward_modules if name not in (self.target_modules or ())]
        if strange:
            raise ValueError(
                f"feedforward_modules names {strange[0]!r}, which is not among target_modules; name it in both, or "
                "leave both out"
            )
        return self

    def apply(self, model: PreTrainedModel, fresh_modules: Sequence[str]) -> Applied:
        """Rescale the layers that are named, or keys, values and feed-forward inputs."""
        from peft import IA3Config

        from hftune.methods.adapters import wrapped

        if self.target_modules:
            targets, feedforward = self.target_modules, self.feedforward_modules
        else:
            known = ARCHITECTURES[model.config.model_type]
            targets, feedforward = (*known.ia3, *known.ia3_feedforward), known.ia3_feedforward
        return wrapped(
            model,
            fresh_modules,
            IA3Config,
            {"target_modules": list(targets), "feedforward_modules": list(feedforward)},
            formula=lambda head: f"{self.formula} + {head}",
            merge=self.merge,
        )
