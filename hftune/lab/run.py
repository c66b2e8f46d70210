"""Runs experiments and keeps what came out: numbers, figures, one page. Called by ``hftune lab run``."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hftune.config.section import Section
from hftune.errors import RunFailed
from hftune.files import write_json, write_text
from hftune.lab.experiment import Experiment
from hftune.lab.page import lab_page, pictured
from hftune.lab.result import Result
from hftune.runs.figures import save

PAGE, NUMBERS, PLOTS = "lab.html", "lab.json", "plots"


def run(experiment: Experiment[Any], settings: Section, seed: int = 0) -> Result:
    """Measure and check.

    Raises:
        RunFailed: The numbers are not finite, so that nothing can be said.
    """
    start = time.monotonic()
    numbers = experiment.measure(settings, seed)
    try:
        json.dumps(numbers, allow_nan=False)
    except ValueError as error:
        raise RunFailed(
            f"{experiment.name}: the numbers are not finite with these settings",
            hint="Take less extreme settings; the defaults are in `hftune lab ls --json`.",
        ) from error
    violated = tuple(experiment.check(numbers))
    changed = settings.model_dump(mode="json", exclude_defaults=True)
    return Result(experiment, settings, changed, seed, numbers, violated, time.monotonic() - start)


def write(results: Sequence[Result], folder: Path) -> Path:
    """Keep results as lab.html, lab.json and a PNG for each; returns the path of the page."""
    pictures = [pictured(result) for result in results]
    for picture in pictures:
        save(picture.figure, folder / PLOTS / f"{picture.name}.png")
    write_json(folder / NUMBERS, {"results": [result.as_dict() for result in results]})
    page = folder / PAGE
    write_text(page, lab_page(results, pictures))
    return page
