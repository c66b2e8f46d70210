"""A comparison as it is seen on the terminal. Used by ``hftune compare`` and ``hftune sweep``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from hftune.cli.terminal import out, say, visible

if TYPE_CHECKING:
    from hftune.studies.compare import Compared


def print_comparison(compared: Compared) -> None:
    """The table, then the verdicts, then what must be known of them."""
    from hftune.runs.wording import baseline_name, duration, score_name
    from hftune.studies.tables import interval_text, memory_text, score_text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("setting", overflow="fold")
    for split in compared.splits:
        table.add_column(f"{split} {score_name(compared.metric)}", justify="right", no_wrap=True)
    for name in (f"95 % interval ({compared.split})", "seeds", "trained", "time", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in compared.rows:
        table.add_row(
            visible(row.name) + (" (selected)" if row.selected else ""),
            *(score_text(row.scores.get(split)) for split in compared.splits),
            interval_text(row.scores.get(compared.split)),
            str(len(row.seeds)),
            f"{row.trainable:,}",
            duration(row.seconds),
            memory_text(row.memory),
            style="bold" if row.selected else "",
        )
    for name, scores in compared.baselines.items():
        shown = (f"{scores[split]:.4f}" if split in scores else "" for split in compared.splits)
        table.add_row(baseline_name(name), *shown, style="dim")
    out().print(table)
    for pair in compared.pairs:
        say(pair.words)
    for line in compared.notes:
        say(f"note: {line}", style="yellow" if "too few" in line or "collapsed" in line else "dim")
