"""Head-only tuning: the backbone is frozen, so it can run once over the examples instead of once per epoch.

The frozen backbone always runs in evaluation mode: dropout in front of weights that do not learn is only noise, and
without it the features of an example are the same in every epoch, so that they can be cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hftune.methods.method import Method

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from hftune.methods.applied import Applied


class HeadMethod(Method):
    """Only the classification head is trained; the encoder is frozen and runs without dropout."""

    kind: Literal["head"] = "head"
    cache_features: bool = True
    """Compute the features of the frozen encoder once and cache them on disk, instead of once per epoch."""
    pretrained_learning_rate: ClassVar[float] = 2e-3
    scratch_learning_rate: ClassVar[float] = 2e-3
    any_architecture: ClassVar[bool] = True
    trains_embeddings_path: ClassVar[bool] = False
    not_causal: ClassVar[str] = (
        "their head is mostly their embeddings, and a fresh one learns nothing that the frozen rest can use"
    )

    def apply(self, model: PreTrainedModel, fresh_modules: Sequence[str]) -> Applied:
        """Freeze the backbone, but for modules that did not come from the checkpoint."""
        from hftune.methods import applied

        modules = applied.head_modules(model, fresh_modules)
        applied.freeze_all_but(model, modules)
        model.base_model.register_forward_pre_hook(_stay_in_evaluation_mode)
        formula = applied.head_formula(model, modules)
        once = self.cache_features and applied.can_split(model, modules)
        return applied.Applied(
            model=model,
            parameters=applied.count(model, formula, applied.letters_of(model)),
            precomputed=applied.split(model) if once else None,
        )


def _stay_in_evaluation_mode(backbone: nn.Module, _: Any) -> None:
    # A hook, because Trainer calls train() on the whole model before every epoch and after every evaluation.
    backbone.eval()
