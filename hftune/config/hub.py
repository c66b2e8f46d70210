"""The ``hub`` section: whether and where the result is published. The token is never part of a recipe."""

from __future__ import annotations

from hftune.config.section import Section


class HubSection(Section):
    """Publishing to the Hugging Face Hub."""

    push_to: str | None = None
    """Repository that receives the finished model, as user/name; nothing is pushed where not given."""
    private: bool = False
    """Create the repository as private."""
    revision: str | None = None
    """Branch to push to; main where not given."""
    push_each_best: bool = False
    """Push each best checkpoint while training goes on, not only the finished model."""
