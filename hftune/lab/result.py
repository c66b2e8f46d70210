"""What is left of an experiment that has run. Made by ``run``, shown by ``page`` and ``hftune lab``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hftune.config.section import Section
from hftune.lab.experiment import Experiment, Numbers


@dataclass(frozen=True)
class Result:
    """One experiment that has run."""

    experiment: Experiment[Any]
    settings: Section
    changed: dict[str, Any]
    """The settings that are not the default."""
    seed: int
    numbers: Numbers
    violated: tuple[str, ...]
    """The statements that the numbers contradict; none where the claim holds."""
    seconds: float

    @property
    def holds(self) -> bool:
        """Whether the claim holds."""
        return not self.violated

    def as_dict(self) -> dict[str, Any]:
        """Everything but the figure, as JSON can hold it."""
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
        """What makes these numbers again."""
        sets = "".join(f" --set '{key}={_written(value)}'" for key, value in self.changed.items())
        return f"hftune lab run {self.experiment.name} --seed {self.seed}{sets}"


def _written(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value)
