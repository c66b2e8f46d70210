"""Speed, measured: cases whose sides take turns, and devices beside each other. Called by ``hftune bench``."""

from __future__ import annotations

from collections.abc import Sequence

from hftune.bench import adapters, answers, classify, head, peak, prediction, preparation, pretraining, startup
from hftune.bench.case import Case
from hftune.errors import HftuneError
from hftune.suggest import did_you_mean

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        *classify.CASES,
        prediction.CASE,
        head.CASE,
        *adapters.CASES,
        pretraining.CASE,
        peak.CASE,
        answers.CASE,
        startup.CASE,
        preparation.CASE,
    )
}
"""Every benchmark, in the order of the table."""


def choose(names: Sequence[str]) -> list[Case]:
    """Cases by name, in the order of the table; all where none is named."""
    for name in names:
        if name not in CASES:
            raise HftuneError(
                f"no benchmark {name!r}: there are {', '.join(CASES)}",
                hint=did_you_mean(name, CASES) or "hftune bench ls shows what each measures",
            )
    return [case for name, case in CASES.items() if not names or name in names]
