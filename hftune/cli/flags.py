"""The flags that every command that trains has, stated once: each command names only its own, and what it has not.

@training_command(own={"unlabeled": options.Unlabeled})
def joint(typed: Typed) -> None: …
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hftune.cli import options
from hftune.cli.train import run_training


@dataclass(frozen=True)
class Typed:
    """What was typed after a command that trains."""

    recipe: str | None
    sets: list[str] | None
    flags: dict[str, Any]
    """Flags that stand for a setting, by their keys in ``options.FLAGS``; None where not typed."""
    others: dict[str, Any]
    """The command's own flags that stand for no setting by themselves."""
    seeds: str | None
    output: Path | None
    resume: bool
    dry_run: bool
    as_json: bool

    def train(self, *, task: str, default: str, suits_others: bool = False) -> None:
        """Carry it out.

        Args:
            task: The task kind of the command.
            default: The recipe that stands in when none was given.
            suits_others: Whether it does so where another model or other data is named, too.
        """
        # A run that goes on brings its own recipe.
        said = options.overrides_from(**{**self.flags, **dict.fromkeys(options.TRUST)})
        goes_on = self.resume and not self.sets and not said
        run_training(
            default if suits_others and self.recipe is None and not goes_on else self.recipe,
            self.sets,
            flags=self.flags,
            task=task,
            default=default,
            seeds=self.seeds,
            output=self.output,
            resume=self.resume,
            dry_run=self.dry_run,
            as_json=self.as_json,
        )


SHARED: dict[str, Any] = {
    "recipe": options.RecipeName,
    "model": options.Model,
    "tokenizer": options.Tokenizer,
    "data": options.Data,
    "method": options.Method,
    "merge": options.Merge,
    "labels": options.Labels,
    "max_length": options.MaxLength,
    "batch_size": options.BatchSize,
    "auto_batch": options.AutoBatch,
    "lr": options.LearningRate,
    "epochs": options.Epochs,
    "eval_steps": options.EvalSteps,
    "seed": options.Seed,
    "seeds": options.Seeds,
    "sets": options.Set,
    "text_column": options.TextColumn,
    "pair_column": options.PairColumn,
    "label_column": options.LabelColumn,
    "trust_remote_code": options.TrustRemoteCode,
    "trust_base_code": options.TrustBaseCode,
    "output": options.Output,
    "push_to_hub": options.PushToHub,
    "push_each_best": options.PushEachBest,
    "resume": options.Resume,
    "dry_run": options.DryRun,
    "as_json": options.Json,
}
"""Parameter name → its flag, in the order of ``--help``."""
COLUMNS = ("text_column", "pair_column", "label_column")
SWITCHES = ("resume", "dry_run", "as_json")
_KEPT_APART = ("recipe", "sets", "seeds", "output", *SWITCHES)
"""Shared flags that are fields of ``Typed``."""


def training_command(
    *, own: Mapping[str, Any] | None = None, without: Collection[str] = ()
) -> Callable[[Callable[[Typed], None]], Callable[..., None]]:
    """Give a command the shared flags and its own.

    Args:
        own: Further flags by parameter name; they stand after ``--max-train-samples``. Those in ``options.FLAGS`` are
        settings.
        without: Shared flags that the command does not have.
    """
    annotations: dict[str, Any] = {}
    for name, flag in SHARED.items():
        if name not in without:
            annotations[name] = flag
        if name == "labels":
            annotations |= own or {}

    def decorate(command: Callable[[Typed], None]) -> Callable[..., None]:
        @functools.wraps(command)
        def typed_in(**values: Any) -> None:
            rest = {name: value for name, value in values.items() if name not in options.FLAGS}
            command(
                Typed(
                    flags={name: value for name, value in values.items() if name in options.FLAGS},
                    others={name: value for name, value in rest.items() if name not in _KEPT_APART},
                    **{name: value for name, value in rest.items() if name in _KEPT_APART},
                )
            )

        # What typer reads the flags from.
        typed_in.__annotations__ = annotations
        vars(typed_in)["__signature__"] = inspect.Signature(
            [
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=False if name in SWITCHES else None,
                    annotation=annotation,
                )
                for name, annotation in annotations.items()
            ]
        )
        return typed_in

    return decorate
