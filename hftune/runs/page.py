"""Pages: what a section is, and how templates become one self-contained HTML text.

Used by ``hftune.runs.report`` for runs and by the studies for theirs; both extend templates/base.html.j2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

import hftune
from hftune.runs import wording
from hftune.runs.figures import to_svg

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Picture:
    """One figure of a page."""

    name: str
    """Unique on its page, and the file name of its PNG."""
    figure: Figure
    alt: str
    """What it shows, in words, for those who do not see it."""
    caption: str

    def svg(self) -> Markup:
        """The figure as an element of the page."""
        return to_svg(self.figure, self.name)


@dataclass(frozen=True)
class Section:
    """One part of a page."""

    id: str
    """Where links point to."""
    title: str
    template: str
    """File in templates/sections/."""
    lead: str = ""
    """The sentence that says what is to be seen."""
    pictures: tuple[Picture, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    """What the template shows."""


@dataclass(frozen=True)
class Banner:
    """Something that must be read before any number; ``alarm`` for what makes the numbers worthless."""

    title: str
    text: str
    alarm: bool = False


def render(template: str, **values: Any) -> str:
    """Fill a template. Every text is escaped, and control characters in it are made visible."""
    return _environment().get_template(template).render(version=hftune.__version__, **values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters |= {
        "number": wording.number,
        "percent": wording.percent,
        "signed": wording.signed,
        "score_name": wording.score_name,
        "baseline_name": wording.baseline_name,
    }
    return environment


def _finalize(value: Any) -> Any:
    """Runs over whatever a template prints; our own markup passes as it is."""
    return wording.visible(value) if type(value) is str else value
