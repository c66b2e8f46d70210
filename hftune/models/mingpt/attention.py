"""The table of attention variants. A new one is one file and one line here; the contract test runs over all.

The table is not in ``__init__.py`` because saving a model copies the modules that ``modeling_mingpt`` imports
relatively, and ``__init__.py`` is not one of them.
"""

from __future__ import annotations

from .attention_base import CausalAttention
from .attention_bigbird import BigBirdAttention
from .attention_linformer import LinformerAttention
from .attention_performer import PerformerAttention
from .attention_rope import RopeAttention
from .attention_synthesizer import SynthesizerAttention
from .attention_vanilla import VanillaAttention

ATTENTION: dict[str, type[CausalAttention]] = {
    "vanilla": VanillaAttention,
    "rope": RopeAttention,
    "synthesizer": SynthesizerAttention,
    "performer": PerformerAttention,
    "bigbird": BigBirdAttention,
    "linformer": LinformerAttention,
}


def attention_class(name: str) -> type[CausalAttention]:
    """The class behind ``config.attention``."""
    if name not in ATTENTION:
        raise ValueError(f"attention is {name!r}; choose one of {', '.join(ATTENTION)}.")
    return ATTENTION[name]
