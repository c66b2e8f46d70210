"""Select experiments by name and settings, run them, and write their numbers, figures and page."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hftune.config.section import Section, expectation, takes_bool
from hftune.config.values import got, parse_sets
from hftune.errors import HftuneError, RunFailed, did_you_mean
from hftune.files import write_json
from hftune.lab import MODULES
from hftune.lab.experiment import Experiment, Numbers
from hftune.runs.formatting import duration
from hftune.runs.page import Banner, HtmlPage, PageSection, Picture

ALL = "all"
EXPERIMENTS: dict[str, Experiment[Any]] = {
    name: import_module(f"hftune.lab.{module}").EXPERIMENT for name, module in MODULES.items()
}


@dataclass(frozen=True)
class LabResult:
    """The result of one experiment."""

    experiment: Experiment[Any]
    settings: Section
    seed: int
    numbers: Numbers
    violated: tuple[str, ...]
    """The statements that the numbers contradict; empty if the claim holds."""
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether the claim holds."""
        return not self.violated

    def as_dict(self) -> dict[str, Any]:
        """Everything except the figure, for JSON."""
        return {
            "experiment": self.experiment.name,
            "claim": self.experiment.claim,
            "holds": self.holds,
            "violated": list(self.violated),
            "seed": self.seed,
            "settings": self.settings.model_dump(mode="json"),
            "seconds": round(self.seconds, 2),
            "numbers": self.numbers,
        }

    def command(self) -> str:
        """The command that reproduces these numbers."""
        changed = self.settings.model_dump(mode="json", exclude_defaults=True)
        shown = {key: str(value).replace("'", "") for key, value in changed.items()}
        sets = "".join(f" --set '{key}={value}'" for key, value in shown.items())
        return f"hftune lab run {self.experiment.name} --seed {self.seed}{sets}"


# ---- selection ----


def select(name: str, sets: Sequence[str] = ()) -> list[tuple[Experiment[Any], Section]]:
    """One experiment or all of them, with their settings; every error is reported at once.

    Args:
        name: A name in ``EXPERIMENTS``, or ``all``.
        sets: ``key=value`` for one experiment, ``experiment.key=value`` for all.

    Raises:
        HftuneError: There is no such experiment or setting, or a value is not valid.
    """
    if name != ALL and name not in EXPERIMENTS:
        near = did_you_mean(name, [*EXPERIMENTS, ALL])
        raise HftuneError(
            f"there is no experiment {name!r}" + (f"; {near}" if near else ""),
            hint=f"choose one of {', '.join(EXPERIMENTS)}, or all",
        )
    pairs, found = parse_sets(sets)
    problems = [f"{problem.path or '--set'}: {problem.message}" for problem in found]
    given: dict[str, dict[str, Any]] = {one: {} for one in EXPERIMENTS}
    for key, value in pairs:
        owner, dot, setting = key.partition(".")
        if name != ALL and not dot:
            owner, setting = name, key
        if owner not in EXPERIMENTS or not setting:
            near = did_you_mean(owner, EXPERIMENTS)
            problems.append(
                f"{key}: expected EXPERIMENT.KEY=VALUE, such as copy.keys=8" + (f"; {near}" if near else "")
            )
        elif name not in (ALL, owner):
            problems.append(f"{key}: only {name} is run")
        else:
            given[owner][setting] = value
    selected: list[tuple[Experiment[Any], Section]] = []
    for one, experiment in EXPERIMENTS.items():
        if name in (ALL, one):
            settings, wrong = _read_settings(experiment, given[one])
            problems += wrong
            if settings is not None:
                selected.append((experiment, settings))
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise HftuneError(
            f"lab run {name}: {count}\n" + "\n".join(f"  {problem}" for problem in problems),
            hint="`hftune lab ls --json` lists every setting with its default and meaning",
        )
    return selected


def _read_settings(experiment: Experiment[Any], given: dict[str, Any]) -> tuple[Section | None, list[str]]:
    """The settings of one experiment, or what is wrong with them."""
    fields = experiment.settings.model_fields
    problems = [
        f"{experiment.name}.{key}: expected {expectation(fields[key])}; got {got(value)}"
        for key, value in given.items()
        if key in fields and isinstance(value, bool) and not takes_bool(fields[key])
    ]
    if problems:
        return None, problems  # pydantic would read true as 1
    try:
        settings: Section = experiment.settings.model_validate(given)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            place = [str(part) for part in details["loc"]]
            path = ".".join([experiment.name, *place])
            if details["type"] == "extra_forbidden":
                near = did_you_mean(place[0], fields)
                problems.append(f"{path}: unknown setting; " + (near or f"known here: {', '.join(fields)}"))
            elif len(place) == 1 and details["type"] not in ("value_error", "too_short", "too_long"):
                problems.append(f"{path}: expected {expectation(fields[place[0]])}; got {got(details['input'])}")
            else:
                message = details["msg"].removeprefix("Value error, ")
                shown = f"; got {got(details['input'])}" if place else ""
                problems.append(f"{path}: {message[:1].lower()}{message[1:]}{shown}")
        return None, problems
    return settings, []


# ---- running ----


def run(experiment: Experiment[Any], settings: Section, seed: int = 0) -> LabResult:
    """Measure and check.

    Raises:
        RunFailed: The numbers are not finite.
    """
    start = time.monotonic()
    numbers = experiment.measure(settings, seed)
    try:
        json.dumps(numbers, allow_nan=False)
    except ValueError as error:
        raise RunFailed(
            f"{experiment.name}: the numbers are not finite with these settings",
            hint="choose less extreme settings; `hftune lab ls --json` lists the defaults",
        ) from error
    violated = tuple(experiment.check(numbers))
    return LabResult(experiment, settings, seed, numbers, violated, time.monotonic() - start)


def write(results: Sequence[LabResult], folder: Path) -> Path:
    """Write lab.html, lab.json and a PNG for each result; returns the path of the page."""
    write_json(folder / "lab.json", {"results": [result.as_dict() for result in results]})
    return lab_page(results).write(folder / "lab.html", folder / "plots")


# ---- the page ----


def lab_page(results: Sequence[LabResult]) -> HtmlPage:
    """The page of these results, in their order."""
    several = len(results) > 1
    sections = [_section(result) for result in results]
    if several:
        sections.insert(0, _overview(results))
    failed = [result.experiment.name for result in results if not result.holds]
    text = f"The numbers contradict the claims of {', '.join(failed)}; their sections list the statements."
    return HtmlPage(
        title="The attention lab" if several else results[0].experiment.name,
        kind="Experiments" if several else "Experiment",
        subtitle=f"What attention can and can't do, measured · seed {results[0].seed}",
        sections=sections,
        banners=[Banner("A claim does not hold.", text, alarm=True)] if failed else [],
    )


def mathematics(docstring: str) -> list[tuple[bool, str]]:
    """The paragraphs of a docstring after the first; True marks formulas, whose line breaks are kept."""
    return [
        (True, textwrap.dedent(paragraph).strip("\n"))
        if paragraph.startswith("    ")
        else (False, " ".join(paragraph.split()))
        for paragraph in docstring.strip().split("\n\n")[1:]
    ]


def _overview(results: Sequence[LabResult]) -> PageSection:
    holding = sum(result.holds for result in results)
    seconds = duration(sum(result.seconds for result in results))
    count = "All" if holding == len(results) else f"{holding} of"
    return PageSection(
        id="claims",
        title="Claims",
        template="lab_claims",
        lead=f"{count} {len(results)} claims hold. Each was measured and checked here, in {seconds} in total.",
        values={"results": results},
    )


def _section(result: LabResult) -> PageSection:
    experiment = result.experiment
    drawing = experiment.draw(result.numbers)
    return PageSection(
        id=experiment.name,
        title=experiment.name,
        template="lab_experiment",
        lead=experiment.claim,
        pictures=(Picture(experiment.name, drawing.figure, drawing.alt, drawing.caption),),
        values={
            "violated": result.violated,
            "rows": experiment.rows(result.numbers),
            "questions": experiment.questions,
            "mathematics": mathematics(experiment.docstring),
            "command": result.command(),
        },
    )
