"""What ``hftune data check`` prints about labeled data. Called by ``hftune.cli.data``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hftune.cli import terminal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hftune.data.checks import Check

SHOWN_LABELS = 20
BAR = 30


def show_check(found: Check) -> None:
    """The findings first said in numbers, then in words."""
    for name, part in found.splits.items():
        terminal.say(f"{name}: {part.rows:,} rows", style="bold")
        shown = dict(list(part.labels.items())[:SHOWN_LABELS])
        _bars(list(shown.items()), part.rows)
        if len(part.labels) > len(shown):
            terminal.say(f"  … and {len(part.labels) - len(shown)} more labels", style="dim")
        terminal.say(f"  {found.unit}: median {part.median_length:g}, longest {part.longest:,}", style="dim")
        _bars([(f"{bar.low}–{bar.high}", bar.rows) for bar in part.lengths], part.rows)
    if not found.findings:
        terminal.say("No duplicates, no leakage, no contradictions, nothing cut.", style="bold green")
        return
    terminal.say("Findings", style="bold")
    for finding in found.findings:
        terminal.say(f"  • {finding}")
    for example in found.conflict_examples:
        labels = ", ".join(f"{label} × {times}" for label, times in example.labels.items())
        terminal.say(f"    {labels}: {example.text[:100]!r}", style="dim")


def _bars(counts: Sequence[tuple[str, int]], total: int) -> None:
    width = max((len(terminal.visible(name[:BAR])) for name, _ in counts), default=0)
    largest = max((count for _, count in counts), default=0) or 1
    for name, count in counts:
        bar = "█" * round(BAR * count / largest)
        terminal.say(f"  {terminal.visible(name[:BAR]):<{width}}  {count:>9,}  {count / total:>6.1%}  {bar}")
