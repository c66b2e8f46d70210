"""Choosing a setting by its mean validation score over seeds. Test plays no part in it. Used by the sweep and its
page.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from hftune.errors import RunFailed
from hftune.runs.directory import RunDir
from hftune.studies.folder import StudyDir
from hftune.studies.settings import Setting


@dataclass(frozen=True)
class Selection:
    """The setting that validation chose, and what it was chosen by."""

    setting: Setting
    metric: str
    mean: float
    """Mean validation score over its seeds."""
    seeds: int
    level: tuple[str, ...] = ()
    """Settings with the same mean, which the plan names later."""

    def in_words(self) -> str:
        """How it was chosen."""
        seeds = f"{self.seeds} seed{'s' * (self.seeds != 1)}"
        level = f"; level with {', '.join(self.level)}, which the plan names later" if self.level else ""
        return (
            f"{self.setting.name} was selected by its mean validation {self.metric}, {self.mean:.4f} over {seeds}; "
            "test "
            f"played no part in it{level}"
        )


def select(study: StudyDir) -> Selection:
    """The best setting by its mean validation score; one that lacks seeds ranks behind those that have all.

    Of settings that are level, the one that the plan names first.

    Raises:
        RunFailed: Not one run is complete.
    """
    wanted = len(study.plan().seeds)
    found = [(setting, runs) for setting in study.settings() if (runs := study.runs(setting))]
    if not found:
        again = "start the study again: it continues"
        if not (failures := study.failures()):
            raise RunFailed(f"{study.path} has no complete run", hint=again)
        first = failures[0]
        raise RunFailed(
            f"{study.path} has no complete run; the first one failed: {first['reason']}",
            hint=f"{first['hint']}. Then {again}" if first["hint"] else f"fix that, then {again}",
        )
    train = found[0][1][0].read_recipe().train
    sign = 1.0 if train.prefers_higher else -1.0
    means = [fmean(dev_score(run, train.best_metric) for run in runs) for _, runs in found]
    ranks = [(len(runs) == wanted, sign * mean) for (_, runs), mean in zip(found, means, strict=True)]
    best = ranks.index(max(ranks))
    level = tuple(found[place][0].name for place in range(len(found)) if ranks[place] == ranks[best] and place != best)
    return Selection(found[best][0], train.best_metric, means[best], len(found[best][1]), level)


def dev_score(run: RunDir, metric: str) -> float:
    """The score that training selected its checkpoint by, of the saved artifact."""
    return float(run.read_metrics()["splits"]["validation"][metric])
