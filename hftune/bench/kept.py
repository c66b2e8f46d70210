"""Results that are kept: one json with the last run of every case, and the table that is made of it.

``hftune bench --keep FOLDER`` writes both; a case that is run again replaces its own row and no other. The table stands
in the folder's README.md between two marks; what stands around it is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hftune.errors import HftuneError
from hftune.files import read_json, write_json, write_text

RESULTS, PAGE = "results.json", "README.md"
BEGIN, END = "<!-- table of hftune bench -->", "<!-- end of table -->"
COLUMNS = ("what", "against", "goal", "reached", "lowest … highest", "by", "met")
Row = Mapping[str, Any]


def check(folder: Path) -> None:
    """Say before anything is measured that the page has no place for the table."""
    page = folder / PAGE
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    if text and (text.count(BEGIN) != 1 or text.count(END) != 1):
        raise HftuneError(
            f"{page} has no place for the table",
            hint=f"put a line {BEGIN} and a line {END} where it should stand",
        )


def keep(folder: Path, found: Sequence[Row], machine: Mapping[str, Any], order: Iterable[str]) -> None:
    """Add results to those that are kept, and write the table anew.

    Args:
        folder: Where results.json and README.md lie.
        found: Results as ``Result.as_dict`` gives them.
        machine: Where they were measured.
        order: Names of all cases, in the order of the table.
    """
    path, page = folder / RESULTS, folder / PAGE
    before = read_json(path)["results"] if path.is_file() else []
    rows = {row["case"]: row for row in before} | {row["case"]: {**row, "machine": dict(machine)} for row in found}
    ordered = [rows[name] for name in order if name in rows]
    write_json(path, {"results": ordered})
    text = page.read_text(encoding="utf-8") if page.is_file() else f"# Benchmarks\n\n{BEGIN}\n{END}\n"
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    write_text(page, f"{head}{BEGIN}\n{markdown(ordered)}\n{END}{tail}")


def markdown(rows: Sequence[Row]) -> str:
    """The table, and below it where and when its rows were measured."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "| " + " | ".join(["---"] * len(COLUMNS)) + " |"]
    for row in rows:
        if row["skipped"]:
            lines.append(f"| {row['what']} | | | not run: {row['skipped']} | | | |")
        for goal in row["goals"]:
            lines.append("| " + " | ".join([row["what"], *cells(goal, row["clock"])]) + " |")
    return "\n".join([*lines, "", *_where(rows)])


def cells(goal: Mapping[str, Any], clock: str) -> list[str]:
    """One goal as the cells of a table: against what, how much, what was reached, spread, clock, whether it is met."""
    least, most = goal["least"], goal["most"]
    wanted = f"at least {times(least)}" if least is not None else f"under {times(most)}" if most is not None else "–"
    verdict = "–" if least is None and most is None else "yes" if goal["met"] else "no"
    spread = f"{times(goal['low'])} … {times(goal['high'])}"
    return [goal["against"], wanted, times(goal["ratio"]), spread, f"{clock} time", verdict]


def times(ratio: float) -> str:
    """A ratio as people read it."""
    return f"{ratio:.2f}×" if ratio < 10 else f"{ratio:.1f}×" if ratio < 100 else f"{ratio:.0f}×"


def _where(rows: Sequence[Row]) -> list[str]:
    """One line for each machine, date and set of versions; the cases it holds for where there are several."""
    places: dict[str, list[str]] = {}
    for row in rows:
        machine = row["machine"]
        versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
        where = f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads"
        said = f"{row['date']}, {where}, load {machine['load']} at the start, {versions}"
        places.setdefault(said, []).append(row["case"])
    if len(places) == 1:
        return [f"Measured {next(iter(places))}."]
    return [f"- {', '.join(cases)}: {place}" for place, cases in places.items()]
