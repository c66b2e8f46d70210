"""Moving a run or a group of seeds out of the way of a new one: ``overwrite``. Nothing is deleted.

Called by ``hftune.opening`` and ``hftune.pipeline``.
"""

from __future__ import annotations

from pathlib import Path

from hftune.config.recipe import Recipe
from hftune.errors import HftuneError
from hftune.files import refuse_links
from hftune.runs.directory import RUN, RunDir, is_run
from hftune.runs.group import seed_runs
from hftune.runs.naming import free_name


def is_replaceable(path: Path) -> bool:
    """Whether this is a run or a group of seeds; anything else is never moved."""
    return is_run(path) or bool(seed_runs(path))


def move_aside(path: Path) -> Path:
    """Rename a run or a group to a free name next to it.

    Returns:
        Its new path.

    Raises:
        HftuneError: A process is using it, or it can't be renamed.
    """
    refuse_links(path, RUN, depth=2)
    for run in seed_runs(path) or [RunDir(path)]:
        with run.locked():
            pass
    free = free_name(path)
    try:
        path.rename(free)
    except OSError as error:
        raise HftuneError(
            f"can't move {path} aside to {free}: {error.strerror}", hint="take another output directory"
        ) from error
    return free


def point_to(moved: Path, path: Path) -> None:
    """Let the recipes of a run that was moved aside name its rows where they are now."""
    for run in seed_runs(moved) or [RunDir(moved)]:
        try:
            named = moved_with(run.read_recipe(), path, moved)  # finds the rows
        except HftuneError:
            continue  # a recipe that can't be read is no reason to fail the run that took its place
        run.write_recipe(named)


def moved_with(recipe: Recipe, path: Path, moved: Path) -> Recipe:
    """A recipe whose data or model are in a run that was moved, with their new paths."""
    data, model = recipe.data.dataset_name, recipe.model.model_name_or_path
    return recipe.model_copy(
        update={
            "data": recipe.data.model_copy(update={"dataset_name": _new_path(data, path, moved)}),
            "model": recipe.model.model_copy(update={"model_name_or_path": _new_path(model, path, moved)}),
        }
    )


def _new_path(name: str, path: Path, moved: Path) -> str:
    """A path inside what was moved as it is now; any other name as it is."""
    given = Path(name).expanduser()
    try:
        inside = given.resolve().relative_to(path.resolve())
    except (OSError, RuntimeError, ValueError):  # elsewhere, or no path at all
        return name
    return str(moved / inside)
