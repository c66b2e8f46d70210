"""BitFit: the biases and the head are trained (Ben Zaken et al. 2022, arXiv:2106.10199)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from hftune.errors import HftuneError
from hftune.methods.method import Method

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hftune.methods.applied import Applied

# Each layer: query, key, value, attention output, feed-forward output and two norms are d wide, one is f wide. The
# embeddings end in a norm; a pooler that came with the checkpoint has a bias of its own.
BIASES = "7·L·d + L·f + d"
POOLER = "pooler.dense"


class BitfitMethod(Method):
    """The biases and the head are trained (BitFit)."""

    kind: Literal["bitfit"] = "bitfit"
    pretrained_learning_rate: ClassVar[float] = 1e-3
    scratch_learning_rate: ClassVar[float] = 1e-3
    formula: ClassVar[str] = f"{BIASES} + d"
    papers: ClassVar[tuple[str, ...]] = ("2106.10199",)
    any_architecture: ClassVar[bool] = True

    def apply(self, model: PreTrainedModel, fresh_modules: Sequence[str]) -> Applied:
        """Freeze every weight that is neither a bias nor in the head."""
        from hftune.methods.applied import Applied, count, freeze_all_but, head_formula, head_modules, letters_of

        modules = head_modules(model, fresh_modules)
        freeze_all_but(model, modules)
        biases = [
            parameter
            for name, parameter in model.named_parameters()
            if name.rpartition(".")[2] == "bias" and not parameter.requires_grad
        ]
        if not biases:
            raise HftuneError(
                f"bitfit does not work with this {model.config.model_type} model: it has no biases outside its head",
                hint="use --method lora or ia3, which add weights of their own, or --method head",
            )
        for parameter in biases:
            parameter.requires_grad_(True)
        head = head_formula(model, modules)
        pooled = any(name.endswith(f"{POOLER}.bias") for name, _ in model.named_parameters())
        frozen_pooler = pooled and not any(name.endswith(POOLER) for name in modules)
        formula = f"{self.formula if frozen_pooler else BIASES} + {head}" if head else None
        return Applied(model=model, parameters=count(model, formula, letters_of(model)))
