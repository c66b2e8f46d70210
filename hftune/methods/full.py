"""Full fine-tuning: all parameters are trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from hftune.methods.method import Method

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hftune.methods.applied import Applied


class FullMethod(Method):
    """All parameters are trained."""

    kind: Literal["full"] = "full"
    pretrained_learning_rate: ClassVar[float] = 5e-5
    scratch_learning_rate: ClassVar[float] = 5e-4
    any_architecture: ClassVar[bool] = True

    def apply(self, model: PreTrainedModel, fresh_modules: Sequence[str]) -> Applied:
        """Leave the model as it is."""
        from hftune.methods.applied import Applied, count

        return Applied(model=model, parameters=count(model))
