"""Compare hftune with other tools: the contestants of a case take turns within one run, and ratios are reported.

Used by the scripts `training.py`, `inference.py` and `overhead.py`. Each defines a few cases and ends with
`harness.main(CASES)`, which gives it these options:

    python benchmarks/training.py                     # every case of the script, one ratio per goal
    python benchmarks/training.py head lora           # some of them
    python benchmarks/training.py head --clock cpu    # on a machine that is also doing other work
    python benchmarks/training.py --quick             # tiny models: checks that the cases run
    python benchmarks/training.py --save              # update results.json and the table in README.md
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from hftune.errors import HftuneError, did_you_mean
from hftune.files import read_json, write_json, write_text
from hftune.pipeline.bench import describe_machine
from hftune.portability import cpu_seconds
from hftune.progress import quiet_libraries

CLOCKS = ("wall", "cpu")
HERE = Path(__file__).resolve().parent
BEGIN, END = "<!-- results -->", "<!-- end of results -->"
COLUMNS = ("what", "compared with", "goal", "ratio", "lowest … highest", "clock", "met")


@dataclass(frozen=True)
class Timing:
    """One turn of one contestant."""

    work: float
    """Amount of work done, in the unit of the case."""
    wall: float
    """Elapsed seconds."""
    cpu: float
    """CPU seconds of this process, all its threads and its children; other processes do not count."""

    def rate(self, clock: str) -> float:
        """Work per second."""
        return self.work / max(self.wall if clock == "wall" else self.cpu, 1e-9)


Contestant = Callable[[], Timing]


@dataclass(frozen=True)
class Scale:
    """Size of a case."""

    share: float = 1.0
    """Fraction of the full number of examples and steps."""
    encoder: str = "tinybert"
    decoder: str = "mingpt"

    def of(self, full: int, least: int) -> int:
        """The number to use in place of `full`, at least `least`."""
        return max(min(full, least), round(full * self.share))


FULL = Scale()
QUICK = Scale(share=0.02, encoder="bert-tiny", decoder="mingpt-tiny")


@dataclass(frozen=True)
class Goal:
    """The ratio that hftune should reach against another contestant; without a bound it is only reported."""

    against: str
    least: float | None = None
    """hftune's rate is at least this multiple of the other's."""
    most: float | None = None
    """hftune's time is at most this multiple of the other's."""

    def ratio(self, ours: Timing, theirs: Timing, clock: str) -> float:
        """Ratio of rates, or of times if `most` is the bound."""
        rates = ours.rate(clock) / theirs.rate(clock)
        return 1 / rates if self.most is not None else rates

    def met(self, ratio: float) -> bool:
        """Whether the ratio reaches the goal."""
        return ratio <= self.most if self.most is not None else ratio >= (self.least or 0.0)


@dataclass(frozen=True)
class Case:
    """One comparison."""

    name: str
    what: str
    """What is done, for the table."""
    unit: str
    """Unit of the work."""
    goals: tuple[Goal, ...]
    contestants: Callable[[Path, Scale], Mapping[str, Contestant]]
    """Takes a temporary folder and the scale; prepares everything and returns the contestants, hftune first."""
    repeats: int = 3
    """Measured turns of each contestant."""
    warm_ups: int = 0
    """Turns before those, not measured."""


class Stopwatch:
    """Measures wall and CPU time together; can be started and stopped several times."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time spent in the block."""
        wall, cpu = time.perf_counter(), cpu_seconds()
        try:
            yield
        finally:
            self.wall += time.perf_counter() - wall
            self.cpu += cpu_seconds() - cpu

    def timing(self, work: float) -> Timing:
        """The time so far, for this amount of work."""
        return Timing(work, self.wall, self.cpu)


def timed(work: float, action: Callable[[], object]) -> Timing:
    """Run an action once and measure it."""
    watch = Stopwatch()
    with watch.running():
        action()
    return watch.timing(work)


@contextmanager
def temporary_cache(folder: Path) -> Iterator[None]:
    """Set HFTUNE_CACHE to a folder for the duration of a block."""
    before = os.environ.get("HFTUNE_CACHE")
    os.environ["HFTUNE_CACHE"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("HFTUNE_CACHE")
        if before is not None:
            os.environ["HFTUNE_CACHE"] = before


@dataclass(frozen=True)
class Comparison:
    """A measured case, or the reason why it could not run."""

    case: Case
    timings: Mapping[str, Sequence[Timing]] = field(default_factory=dict)
    skipped: str = ""

    def ratios(self, goal: Goal, clock: str) -> list[float]:
        """The ratio of each turn."""
        ours = next(iter(self.timings.values()))
        pairs = zip(ours, self.timings[goal.against], strict=True)
        return [goal.ratio(mine, theirs, clock) for mine, theirs in pairs]

    def as_dict(self, clock: str) -> dict[str, Any]:
        """The entry of results.json; `clock` selects which ratio counts."""
        return {
            "case": self.case.name,
            "what": self.case.what,
            "unit": self.case.unit,
            "clock": clock,
            "date": date.today().isoformat(),
            "skipped": self.skipped,
            "goals": [] if self.skipped else [self._goal_dict(goal, clock) for goal in self.case.goals],
            "contestants": {
                name: {
                    **{f"per_second_{one}": round(statistics.median(t.rate(one) for t in turns), 6) for one in CLOCKS},
                    "turns": [[turn.work, round(turn.wall, 4), round(turn.cpu, 4)] for turn in turns],
                }
                for name, turns in self.timings.items()
            },
        }

    def _goal_dict(self, goal: Goal, clock: str) -> dict[str, Any]:
        each = self.ratios(goal, clock)
        return {
            "against": goal.against,
            "least": goal.least,
            "most": goal.most,
            "ratio": round(statistics.median(each), 4),
            "low": round(min(each), 4),
            "high": round(max(each), 4),
            **{f"ratio_{one}": round(statistics.median(self.ratios(goal, one)), 4) for one in CLOCKS},
            "met": goal.met(statistics.median(each)),
        }


def measure(
    case: Case, scale: Scale, *, repeats: int | None = None, progress: Callable[[str], None] = lambda line: None
) -> Comparison:
    """Run one case; a case that lacks something on this machine is returned with the reason in `skipped`."""
    timings: dict[str, list[Timing]] = {}
    with tempfile.TemporaryDirectory(prefix="hftune-bench-") as folder:
        try:
            progress(f"{case.name}: setting up")
            contestants = dict(case.contestants(Path(folder), scale))
            for turn in range(-case.warm_ups, repeats or case.repeats):
                # The order is reversed every turn: a machine that slows down during the run then favors no contestant.
                for name in list(contestants) if turn % 2 == 0 else reversed(contestants):
                    progress(f"{case.name}: {name}, " + (f"turn {turn + 1}" if turn >= 0 else "warming up"))
                    done = contestants[name]()
                    if turn >= 0:
                        timings.setdefault(name, []).append(done)
        except HftuneError as error:
            return Comparison(case, skipped=error.message)
    return Comparison(case, {name: timings[name] for name in contestants})


# ---- results.json and the table in README.md ----


def check_page(folder: Path) -> None:
    """Fail before anything is measured if README.md has no place for the table."""
    page = folder / "README.md"
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    if text and (text.count(BEGIN) != 1 or text.count(END) != 1):
        raise HftuneError(
            f"{page} has no place for the table", hint=f"add a line {BEGIN} and a line {END} where the table belongs"
        )


def update_results(folder: Path, entry: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
    """Replace or append one case in results.json, then rewrite the table in README.md."""
    path, page = folder / "results.json", folder / "README.md"
    entries = {row["case"]: row for row in (read_json(path)["results"] if path.is_file() else [])}
    entries[entry["case"]] = {**entry, "machine": dict(machine)}
    write_json(path, {"results": list(entries.values())})
    text = page.read_text(encoding="utf-8") if page.is_file() else f"# Benchmarks\n\n{BEGIN}\n{END}\n"
    head, _, rest = text.partition(BEGIN)
    write_text(page, f"{head}{BEGIN}\n{table(list(entries.values()))}\n{END}{rest.partition(END)[2]}")


def table(entries: Sequence[Mapping[str, Any]]) -> str:
    """Markdown table of all results, followed by when and where they were measured."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "| " + " | ".join(["---"] * len(COLUMNS)) + " |"]
    for row in entries:
        if row["skipped"]:
            lines.append(f"| {row['what']} | | | not run: {row['skipped']} | | | |")
        lines += ["| " + " | ".join([row["what"], *cells(goal, row["clock"])]) + " |" for goal in row["goals"]]
    return "\n".join([*lines, "", *_measured_where(entries)])


def cells(goal: Mapping[str, Any], clock: str) -> list[str]:
    """One goal as table cells, in the order of COLUMNS without the first."""
    least, most = goal["least"], goal["most"]
    wanted = f"at least {times(least)}" if least is not None else f"under {times(most)}" if most is not None else "–"
    verdict = "–" if least is None and most is None else "yes" if goal["met"] else "no"
    spread = f"{times(goal['low'])} … {times(goal['high'])}"
    return [goal["against"], wanted, times(goal["ratio"]), spread, clock, verdict]


def times(ratio: float) -> str:
    """A ratio with three significant digits."""
    return f"{ratio:.2f}×" if ratio < 10 else f"{ratio:.1f}×" if ratio < 100 else f"{ratio:.0f}×"


def _measured_where(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line per date, machine and set of versions."""
    places: dict[str, list[str]] = {}
    for row in entries:
        machine = row["machine"]
        versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
        where = f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads"
        line = f"{row['date']}, {where}, load {machine['load']} at the start, {versions}"
        places.setdefault(line, []).append(row["case"])
    if len(places) == 1:
        return [f"Measured {next(iter(places))}."]
    return [f"- {', '.join(cases)}: {place}" for place, cases in places.items()]


# ---- command line of the scripts ----


def main(cases: Sequence[Case], arguments: Sequence[str] | None = None) -> None:
    """Run the cases of a script, as selected on its command line."""
    parser = argparse.ArgumentParser(epilog=f"cases: {', '.join(case.name for case in cases)}")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="names of cases (default: all)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="which time the ratios use")
    parser.add_argument("--repeats", type=int, help="turns of each contestant (default: set by the case)")
    parser.add_argument("--quick", action="store_true", help="tiny models and few examples: checks that cases run")
    parser.add_argument("--save", action="store_true", help="update results.json and README.md in this folder")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args(arguments)
    known = {case.name: case for case in cases}
    for name in options.cases:
        if name not in known:
            parser.error(f"unknown case {name!r}: {did_you_mean(name, known) or 'choose from ' + ', '.join(known)}")
    if options.save and options.quick:
        parser.error("--quick measures nothing worth saving: leave --save or --quick out")
    if options.save:
        check_page(HERE)
    quiet_libraries()
    machine, entries = describe_machine(), []
    for case in [known[name] for name in options.cases] or cases:
        scale = QUICK if options.quick else FULL
        compared = measure(case, scale, repeats=options.repeats, progress=lambda line: print(line, flush=True))
        entries.append(compared.as_dict(options.clock))
        _print_entry(entries[-1], options.clock)
        if options.save:
            update_results(HERE, entries[-1], machine)
    if options.json:
        print(json.dumps({"machine": machine, "quick": options.quick, "results": entries}))


def _print_entry(entry: Mapping[str, Any], clock: str) -> None:
    print(f"{entry['case']}: {entry['what']}")
    if entry["skipped"]:
        print(f"  not run: {entry['skipped']}")
    for goal in entry["goals"]:
        against, wanted, ratio, spread, _, met = cells(goal, clock)
        print(f"  {ratio} compared with {against} ({spread}, {clock} time); goal: {wanted}, met: {met}", flush=True)
