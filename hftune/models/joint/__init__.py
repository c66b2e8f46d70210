"""One encoder with a classifier and a masked language model, trained together. Used by ``hftune.models.masked``."""

from __future__ import annotations

from .modeling_joint import FAMILIES, JointOutput, as_classifier, as_masked_lm, with_mlm_head
from .modeling_masked import IGNORED, MASKED, row_statistics

__all__ = [
    "FAMILIES",
    "IGNORED",
    "MASKED",
    "JointOutput",
    "as_classifier",
    "as_masked_lm",
    "row_statistics",
    "with_mlm_head",
]
