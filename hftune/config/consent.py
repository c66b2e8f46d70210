"""What a recipe can ask for but not grant: running code from other people. Used by ``hftune.cli``.

A recipe, a study and a run directory may come from anybody. Whoever starts a command decides what may run on the
machine, so these settings count only when they were typed. Python callers of ``hftune.train`` decide by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from pydantic import ValidationError

from hftune.config.model import ModelSection, Trust
from hftune.config.overrides import nested
from hftune.config.recipe import Recipe
from hftune.config.task import ClassifyTask
from hftune.errors import HftuneError

BUILT_IN = re.compile(r"\w+")
"""What a metric's name looks like that is no file and names no commit; the Hub is not asked for such a name."""


def used_model(
    name: str, revision: str | None, trust_remote_code: bool | None, trust_base_code: str | None
) -> ModelSection:
    """The model that a command uses, and whose code may run to load it, from the flags of the command."""
    trust: Trust = {"trust_remote_code": bool(trust_remote_code), "trust_base_code": trust_base_code}
    try:
        return ModelSection(model_name_or_path=name, model_revision=revision, **trust)
    except ValidationError as error:
        expected = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise HftuneError(
            f"--trust-base-code: {expected}; got {trust_base_code!r}",
            hint="leave it out: the command names the repository and the commit if such code is needed",
        ) from error


def typed_keys(pairs: Sequence[tuple[str, Any]]) -> set[str]:
    """The settings, as section.key, that these keys and values give; a value may be a whole section."""
    return {f"{name}.{key}" for name, given in nested(pairs).items() if isinstance(given, dict) for key in given}


def refuse_unasked(recipe: Recipe, typed: Collection[str]) -> None:
    """Refuse a recipe that trusts what nobody has asked for.

    Args:
        recipe: As it was resolved.
        typed: The settings that stand on the command line, as flags or with ``--set``.

    Raises:
        HftuneError: It runs code, and only a file requests it.
    """
    model = recipe.model
    if model.trust_remote_code and "model.trust_remote_code" not in typed:
        raise _unasked(f"run Python code that comes with {model.model_name_or_path}", "--trust-remote-code")
    if model.trust_base_code and "model.trust_base_code" not in typed:
        raise _unasked(f"run Python code of {model.trust_base_code}", f"--trust-base-code {model.trust_base_code}")
    metrics = recipe.task.metrics if isinstance(recipe.task, ClassifyTask) else ()
    foreign = [name for name in metrics if not BUILT_IN.fullmatch(name)]
    if foreign and "task.metrics" not in typed:
        raise _unasked(
            f"run the code of a metric ({', '.join(foreign)})", f"--set 'task.metrics=[{', '.join(metrics)}]'"
        )


def _unasked(what: str, flag: str) -> HftuneError:
    return HftuneError(
        f"the recipe asks to {what}, which no file can decide: files come from anybody",
        hint=f"if you trust whoever made that, say so yourself: {flag}",
    )
