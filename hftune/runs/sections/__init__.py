"""The parts of a run's page, each a function of the run's facts that returns None when the run has no such data."""

from __future__ import annotations

from collections.abc import Callable

from hftune.runs.facts import RunFacts
from hftune.runs.page import Section
from hftune.runs.sections.calibration import calibration
from hftune.runs.sections.confusion import confusion
from hftune.runs.sections.cost import cost
from hftune.runs.sections.curves import curves
from hftune.runs.sections.data import data
from hftune.runs.sections.knowledge import knowledge
from hftune.runs.sections.labels import labels
from hftune.runs.sections.lengths import lengths
from hftune.runs.sections.mistakes import mistakes
from hftune.runs.sections.reproduce import environment, reproduce
from hftune.runs.sections.samples import samples
from hftune.runs.sections.scores import scores

Builder = Callable[[RunFacts], Section | None]

SECTIONS: tuple[Builder, ...] = (
    scores,
    curves,
    confusion,
    labels,
    calibration,
    knowledge,
    lengths,
    mistakes,
    samples,
    cost,
    data,
    reproduce,
    environment,
)
