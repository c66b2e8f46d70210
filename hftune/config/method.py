"""The ``method`` section: which weights move. One class a kind, told apart by ``kind``.

Each class carries the learning rate that suits it, for pretrained weights and for fresh ones; ``Recipe``
fills ``train.learning_rate`` from there when nobody set it.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from hftune.config.section import Section


class FullMethod(Section):
    """Every weight moves."""

    kind: Literal["full"] = "full"
    pretrained_learning_rate: ClassVar[float] = 5e-5
    scratch_learning_rate: ClassVar[float] = 5e-4


MethodSection = FullMethod
