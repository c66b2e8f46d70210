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
    _print_crossed(compared)
    for pair in compared.pairs:
        say(pair.words)
    for line in compared.notes:
        say(f"note: {line}", style="yellow" if "too few" in line or "collapsed" in line else "dim")


def _print_crossed(compared: Compared) -> None:
    """One axis against the other, where the study is such a one."""
    from hftune.runs.wording import score_name
    from hftune.studies.cross import crossed
    from hftune.studies.tables import score_text

    cross = crossed(compared)
    if cross is None:
        return
    title = f"{compared.split} {score_name(compared.metric)} by {cross.name}"
    table = Table(box=None, pad_edge=False, header_style="bold", title=visible(title), title_justify="left")
    table.add_column("", overflow="fold")
    for column in cross.columns:
        table.add_column(visible(column), justify="right", no_wrap=True)
    for name, scores in cross.rows:
        table.add_row(visible(name), *map(score_text, scores))
    for name, found in cross.baselines:
        table.add_row(name, *("–" if one is None else f"{one:.4f}" for one in found), style="dim")
    say("")
    out().print(table)
    say("")
