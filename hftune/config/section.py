"""What every recipe section is: frozen, strict about keys, documented by the sentence under each field."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict

from hftune.errors import HftuneError


class Flag:
    """How a setting appears on the command line, beside ``--`` and its own name.

    A setting with a group is listed by ``--help`` under that heading; the others by ``--help-all``.
    """

    def __init__(self, *names: str, group: str | None = None, metavar: str | None = None) -> None:
        """``names`` are further spellings, with dashes and without the leading ones; the first is shown."""
        self.names, self.group, self.metavar = names, group, metavar


class Section(BaseModel):
    """Base of all recipe sections; unknown keys are errors, field docstrings become ``--help`` and schema."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        defer_build=True,  # the help of a command reads the fields and validates nothing
    )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other values. Pydantic takes any name there, so that a misspelled one would change nothing."""
        strange = [
            name for name in update or () if name not in type(self).model_fields and name not in self._passed_on()
        ]
        if strange:
            raise ValueError(f"{type(self).__name__} has no setting {', '.join(strange)}")
        return super().model_copy(update=update, deep=deep)

    def _passed_on(self) -> Collection[str]:
        """Names that are no declared field and can be set all the same."""
        return ()

    @classmethod
    def undeclared(cls, given: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
        """What is wrong with keys that are no declared field: key, message and hint.

        Nothing here: a plain section forbids such keys, and pydantic names them.
        """
        return iter(())


Wanted = TypeVar("Wanted", bound=Section)


def expect(section: Section, wanted: type[Wanted]) -> Wanted:
    """A section of several kinds as the one kind that the caller works with.

    Raises:
        HftuneError: It is of another kind.
    """
    if not isinstance(section, wanted):
        expected, got = (one.model_fields["kind"].default for one in (wanted, type(section)))
        raise HftuneError(
            f"expected settings of kind {expected}; got {got}",
            hint="use the command that belongs to this kind; `hftune --help` lists them",
        )
    return section
