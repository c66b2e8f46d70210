"""What every command that trains does with its flags: resolve a recipe, run it, print the outcome."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hftune.cli.options import TRUST, overrides_from, resolve
from hftune.cli.outcome import print_dry_run, print_group, print_run
from hftune.cli.seeds import seed_list
from hftune.cli.terminal import show_json
from hftune.errors import HftuneError

if TYPE_CHECKING:
    from hftune.config import Recipe

logger = logging.getLogger(__name__)


def run_training(
    recipe_name: str | None,
    sets: list[str] | None,
    *,
    flags: Mapping[str, Any],
    task: str,
    default: str,
    seeds: str | None,
    output: Path | None,
    resume: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Train one run or a group of seeds, or try the recipe out, and print what came of it."""
    if resume and output is None:
        raise HftuneError("--resume needs to know which run", hint="add --output RUN")
    if seeds is not None and flags.get("seed") is not None:
        raise HftuneError("--seed and --seeds can't both be given", hint="leave one of them out")
    chosen = seed_list(seeds)
    recipe = _recipe(recipe_name, sets, flags, task, default, output if resume and not chosen else None)

    from hftune.cli.watch import Watcher
    from hftune.dryrun import dry_run as try_out
    from hftune.pipeline import train, train_seeds
    from hftune.quiet import quiet_libraries

    quiet_libraries()
    with Watcher() as listener:
        if dry_run:
            estimate = try_out(recipe, output, listener)
            print_dry_run(estimate, as_json)
        elif chosen:
            group, summary, results = train_seeds(recipe, chosen, output, resume=resume, listener=listener)
            print_group(group, summary, results, as_json)
        else:
            result = train(recipe, output, resume=resume, listener=listener)
            if as_json and result.metrics:
                show_json({"run": str(result.run.path), **result.metrics})
            elif not as_json:
                print_run(result)


def _recipe(
    name: str | None,
    sets: list[str] | None,
    flags: Mapping[str, Any],
    task: str,
    default: str,
    resumed: Path | None,
) -> Recipe:
    """The recipe of the command; a run that goes on brings its own, and flags may only repeat it."""
    trust = {flag: flags.get(flag) for flag in TRUST}
    nothing_said = name is None and not sets and not overrides_from(**{**flags, **dict.fromkeys(TRUST)})
    if resumed is not None and nothing_said and (resumed / "recipe.yaml").is_file():
        return resolve(str(resumed), None, task=task, **trust)
    # The default recipe is made for its own model and data; with others the schema's defaults are the better start.
    own = flags.get("model") is None and flags.get("data") is None
    if name is None:
        told = default if own else f"defaults ({default} is made for its own model and data)"
        logger.info("recipe: %s", told)
    return resolve(name, sets, task=task, default=default if own else None, **flags)
