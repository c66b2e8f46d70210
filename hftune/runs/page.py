"""Self-contained HTML pages made of sections: the report of a run, of a study, of a comparison, and of the lab.

templates/page.html.j2 is the page, templates/sections/ has one template for each kind of section.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

import hftune
from hftune.files import write_text
from hftune.runs import formatting
from hftune.runs.figures import save, to_svg
from hftune.sanitize import visible

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Picture:
    """One figure of a page."""

    name: str
    """Unique on its page, and the file name of its PNG."""
    figure: Figure
    alt: str
    """A description for readers who do not see it."""
    caption: str

    def svg(self) -> Markup:
        """The figure as an element of the page."""
        return to_svg(self.figure, self.name)


@dataclass(frozen=True)
class PageSection:
    """One section of a page."""

    id: str
    """The target of links."""
    title: str
    template: str
    """File in templates/sections/, without .html.j2."""
    lead: str = ""
    """The first sentence: what the section shows."""
    pictures: tuple[Picture, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    """What the template shows."""


@dataclass(frozen=True)
class Banner:
    """A warning above all numbers; ``alarm`` if the numbers can't be trusted."""

    title: str
    text: str
    alarm: bool = False


@dataclass(frozen=True)
class HtmlPage:
    """A page before it is rendered."""

    title: str
    kind: str
    """Run report, Study …: the line above the title."""
    subtitle: str
    sections: Sequence[PageSection]
    banners: Sequence[Banner] = ()
    source: str = ""
    """The source of the page, for its footer."""

    def html(self) -> str:
        """The page as text. Every value is escaped, and control characters in it are made visible."""
        return _environment().get_template("page.html.j2").render(page=self, version=hftune.__version__)

    def write(self, path: Path, plots: Path | None = None) -> Path:
        """Write the page, and its figures as PNG into the folder ``plots``, whose old figures are removed."""
        # The page first: saving a figure as PNG fixes its layout, which would change the SVG.
        text = self.html()
        if plots is not None:
            # Figures of an earlier report that this one lacks would be taken for results of this run.
            figures = {f"{name}.png": figure for name, figure in self.figures.items()}
            for old in plots.glob("*.png"):
                if old.name not in figures:
                    old.unlink()
            for name, figure in figures.items():
                save(figure, plots / name)
        write_text(path, text)
        return path

    @property
    def figures(self) -> dict[str, Figure]:
        """The figures of the page by name."""
        return {picture.name: picture.figure for section in self.sections for picture in section.pictures}


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
    names = ("number", "percent", "signed", "duration", "score_name", "baseline_name", "sentence")
    environment.filters |= {name: getattr(formatting, name) for name in names}
    return environment


def _finalize(value: Any) -> Any:
    # Runs over everything that a template prints; our own markup (a subclass of str) passes unchanged.
    return visible(value.replace("\r\n", "\n")) if type(value) is str else value
