"""Intervals of shares, for the report: how sure is an accuracy that was counted on so many rows."""

from __future__ import annotations

from math import sqrt

Z95 = 1.959963984540054


def wilson(share: float, rows: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share that was counted on so many independent rows."""
    assert rows > 0 and 0 <= share <= 1
    spread = Z95**2 / rows
    centre = (share + spread / 2) / (1 + spread)
    half = Z95 / (1 + spread) * sqrt(share * (1 - share) / rows + spread / (4 * rows))
    # At 0 and 1 the exact ends are 0 and 1; rounding must not put the share outside of its own interval.
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))
