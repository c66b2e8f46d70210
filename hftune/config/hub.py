"""The ``hub`` section: whether and where the result is published. The token is never part of a recipe."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import model_validator

from hftune.config.section import Flag, Section

HUB = "Publishing"
_NOT_HERE = ("every_save", "checkpoint", "all_checkpoints")


class HubSection(Section):
    """Publishing to the Hugging Face Hub."""

    push_to_hub: Annotated[bool | None, Flag(group=HUB)] = None
    """Publish the finished model; on by default where hub_model_id is set."""
    hub_model_id: Annotated[str | None, Flag(group=HUB, metavar="USER/NAME")] = None
    """Repository of the model; by default named after the run, under your account."""
    hub_strategy: Literal["end", "best"] = "end"
    """What to publish: the finished model, or also each best checkpoint during training."""
    hub_private_repo: bool | None = None
    """Create the repository as private; your account's default where unset."""
    hub_revision: str | None = None
    """Branch to push to; main by default."""

    @model_validator(mode="before")
    @classmethod
    def _explain_strategies(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("hub_strategy") in _NOT_HERE:
            raise ValueError(
                f"hub_strategy {given['hub_strategy']} would publish files that only resume reads; expected end or best"
            )
        return given

    @property
    def pushes(self) -> bool:
        """Whether anything is published."""
        return self.hub_model_id is not None if self.push_to_hub is None else self.push_to_hub
