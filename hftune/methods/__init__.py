"""Which parameters are trained: one file per method, one line in METHODS. A method works with every classifier.

Imports no torch: recipes read the settings of their method from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from hftune.methods.bitfit import BitfitMethod
from hftune.methods.dora import DoraMethod
from hftune.methods.full import FullMethod
from hftune.methods.head import HeadMethod
from hftune.methods.ia3 import Ia3Method
from hftune.methods.lora import LoraMethod
from hftune.methods.method import Method, check
from hftune.methods.peft import PeftMethod
from hftune.methods.prefix import PrefixMethod
from hftune.methods.prompt import PromptMethod
from hftune.methods.ptuning import PTuningMethod

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from hftune.methods.applied import Applied

__all__ = ["METHODS", "FullMethod", "Method", "MethodSection", "apply", "check"]

METHODS: dict[str, type[Method]] = {
    "full": FullMethod,
    "head": HeadMethod,
    "prefix": PrefixMethod,
    "prompt": PromptMethod,
    "ptuning": PTuningMethod,
    "lora": LoraMethod,
    "dora": DoraMethod,
    "ia3": Ia3Method,
    "bitfit": BitfitMethod,
    "peft": PeftMethod,
}

if TYPE_CHECKING:
    MethodSection = Method
else:
    MethodSection = Annotated[Union[tuple(METHODS.values())], Field(discriminator="kind")]  # noqa: UP007
"""The ``method`` section of a recipe: one of the classes in the table, selected by ``kind``."""


def apply(model: PreTrainedModel, section: Method, fresh_modules: Sequence[str]) -> Applied:
    """Freeze, wrap or leave the model as the method requires. ``fresh_modules`` are those that the checkpoint lacks."""
    check(section, model.config, causal=model.can_generate())
    return section.apply(model, fresh_modules)
