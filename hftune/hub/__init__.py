"""Publishing to the Hugging Face Hub: the card, the upload, the proof. Called by the pipeline and ``hftune push``.

Names are imported when they are first used: each attempt to reach the Hub is a process that needs few of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hftune.hub.attempt import Patience as Patience
    from hftune.hub.card import write_card as write_card
    from hftune.hub.publication import Publication as Publication
    from hftune.hub.publish import Published as Published
    from hftune.hub.publish import check_access as check_access
    from hftune.hub.publish import push as push

_HOME = {
    "Patience": "attempt",
    "write_card": "card",
    "Publication": "publication",
    "Published": "publish",
    "check_access": "publish",
    "push": "publish",
}

__all__ = ["Patience", "Publication", "Published", "check_access", "push", "write_card"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'hftune.hub' has no attribute {name!r}")
    return getattr(import_module(f"hftune.hub.{_HOME[name]}"), name)
