"""What every recipe section is: frozen, strict about keys, documented by the sentence under each field."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from hftune.errors import HftuneError


class Section(BaseModel):
    """Base of all recipe sections; unknown keys are errors, field docstrings become ``--help`` and schema."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


Wanted = TypeVar("Wanted", bound=Section)


def expect(section: Section, wanted: type[Wanted]) -> Wanted:
    """A section of several kinds as the one kind that the caller works with.

    Raises:
        HftuneError: It is of another kind.
    """
    if not isinstance(section, wanted):
        asked, got = (words.model_fields["kind"].default for words in (wanted, type(section)))
        raise HftuneError(
            f"expected settings of kind {asked}; got {got}",
            hint="use the command that belongs to this kind; `hftune --help` lists them",
        )
    return section
