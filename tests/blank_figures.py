"""Figures that are built and not rendered: matplotlib's rendering would take half of the time of a tiny run.

Everything that hftune does to a figure still runs; only ``savefig`` writes an empty picture. A test that looks at
pictures carries ``@pytest.mark.renders``. Processes that tests start call ``install``.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="1pt" height="1pt"></svg>'
# 1 × 1 pixel, transparent.
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000050001a5f64540"
    "0000000049454e44ae426082"
)

real_savefig = Figure.savefig
rendering = False
"""Whether figures are rendered; conftest.py sets it before each test."""


def savefig(self: Figure, target: Any, **options: Any) -> None:
    """Write an empty picture, unless figures are rendered."""
    if rendering or options.get("format") not in ("png", "svg"):
        real_savefig(self, target, **options)
    else:
        target.write(PNG if options["format"] == "png" else SVG)


def install() -> None:
    """Render no figure in this process from now on."""
    Figure.savefig = savefig  # type: ignore[method-assign]
