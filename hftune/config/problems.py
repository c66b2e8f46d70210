"""What can be wrong with a recipe: one ``Problem`` each, all of them in one ``RecipeError``.

Raised by ``hftune.config.load``; ``hftune.cli`` lists the problems one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hftune.errors import HftuneError


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, where it is, and what to do about it."""

    path: str
    """Dotted path of the setting, empty when the problem is the file or the command line itself."""
    message: str
    """What was expected and what was got."""
    hint: str = ""
    """What to do, where there is something better to say than the message."""
    source: str = ""
    """Where the value came from: ``file.yaml:7``, ``--set`` or ``override``."""

    def __str__(self) -> str:
        """One line: path, message, source, hint."""
        where = f"{self.path}: " if self.path else ""
        source = f" ({self.source})" if self.source else ""
        hint = f" {self.hint}" if self.hint else ""
        return f"{where}{self.message}{source}.{hint}"


class RecipeError(HftuneError):
    """A recipe that can't be used as it stands, with everything that is wrong with it."""

    def __init__(self, name: str, problems: Sequence[Problem], *, hint: str | None = None) -> None:
        """``name`` is how the user called the recipe; ``hint`` is for files that are no recipes."""
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = "\n".join(f"  {problem}" for problem in problems)
        settings = any(problem.path for problem in problems)
        command = "schema` lists every setting with its meaning" if settings else "ls` lists what is shipped"
        super().__init__(f"{name}: {count}\n{lines}", hint=hint or f"`hftune recipes {command}.")
        self.problems = list(problems)
