"""Open the directory of a run or of a group of seeds for training: new, resumed or in place of another one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hftune.child_process import Death, loader_worker_death
from hftune.errors import HftuneError, Interrupted, RunFailed
from hftune.files import disk_is_full, refuse_links, remove_staged
from hftune.progress import ProgressReporter
from hftune.recipe import Recipe, load_recipe, moved_with, read_recipe, with_data
from hftune.runs.directory import DATA, RunDir, is_run
from hftune.runs.group import SEEDS, is_replaceable, move_aside, refuse_used_group, seed_runs, update_moved_paths
from hftune.training.callbacks import ending_at_once
from hftune.training.launch import a_process_died, agreed, contact_is_lost, is_main_process, wait_for_everyone
from hftune.training.memory import out_of_memory

if TYPE_CHECKING:
    from hftune.data.in_memory import InMemoryData

MAY_CHANGE: Any = {"hub": True, "train": {"save_total_limit"}, "task": {"baselines"}}
"""Settings that may differ when a run is resumed: they don't change what is trained."""


@contextmanager
def opened(
    path: Path,
    recipe: Recipe,
    resume: bool,
    *,
    overwrite: bool = False,
    rows: InMemoryData | None = None,
    progress: ProgressReporter | None = None,
) -> Iterator[tuple[RunDir, Recipe]]:
    """The run directory, locked by this process; removed again if the request is refused.

    Args:
        path: Where the run is or will be.
        recipe: What was requested.
        resume: Resume the run at this path, if there is one.
        overwrite: Move a run at this path aside; it is moved back if the request is refused.
        rows: Data passed from Python, to be stored with the run.
        progress: Progress callback.

    Yields:
        The run, and the recipe as it applies there.
    """
    if not is_main_process():
        with _explained(path, recipe):
            # The main process locks and makes the folder, and waits in turn once that is done (below). ``agreed`` then
            # brings its recipe here: a resumed run has its own dtype, rows from Python the place where they are now.
            wait_for_everyone()
            if not path.is_dir():
                raise HftuneError(
                    f"the main process has made the run directory {path}, but this process does not see it",
                    hint="name an --output on a file system that all machines share",
                )
            yield RunDir(path), agreed(recipe)
        return
    resumed = resume and is_run(path)
    # A refused request leaves nothing behind, not even the folders above the run.
    new_folders = [folder for folder in path.parents if not folder.exists()]
    with _in_place_of(path, recipe, is_run if overwrite and not resumed else None, rows, progress) as recipe:
        if resumed:
            recipe = refuse_other_recipe(RunDir.open(path, to_train=True), recipe)
        run, held = None, False
        try:
            run = RunDir(path) if resumed else RunDir.create(path)
            with run.locked(), _explained(path, recipe):
                held = True  # a directory that another process has locked must not be removed
                remove_staged(path)
                if rows is not None:
                    rows.store(run.data, begun=is_run(path))
                wait_for_everyone()
                yield run, agreed(recipe)
        finally:
            if run is not None and held:
                run.discard_if_not_begun()
            if not path.exists():
                for folder in new_folders:  # innermost first; one that is used stays
                    with suppress(OSError):
                        folder.rmdir()


@contextmanager
def opened_group(
    group: Path,
    recipe: Recipe,
    resume: bool,
    *,
    overwrite: bool,
    rows: InMemoryData | None,
    progress: ProgressReporter,
) -> Iterator[Recipe]:
    """The folder of several seeds, with the data that they share; arguments as for ``opened``."""
    if not is_main_process():
        yield agreed(recipe)
        return
    with _in_place_of(group, recipe, is_replaceable if overwrite else None, rows, progress) as recipe:
        refuse_used_group(group, resume)
        refuse_links(group, SEEDS, depth=1)
        for run in seed_runs(group):
            refuse_other_recipe(
                RunDir.open(run.path, to_train=True), recipe.changed("train", seed=read_recipe(run).train.seed)
            )
        if rows is not None:
            rows.store(group / DATA, begun=bool(seed_runs(group)))
        try:
            yield agreed(recipe)
        finally:
            if not seed_runs(group):  # not one of them was begun
                RunDir(group).discard_if_not_begun()


@contextmanager
def _in_place_of(
    path: Path,
    recipe: Recipe,
    replaceable: Callable[[Path], bool] | None,
    rows: InMemoryData | None,
    progress: ProgressReporter | None,
) -> Iterator[Recipe]:
    """Move an existing run at a path aside if it is ``replaceable``, and back if no new one is made.

    Yields the recipe, whose data or model may have been moved with it.
    """
    recipe = recipe if rows is None else with_data(recipe, path / DATA)
    if replaceable is None or not replaceable(path):
        yield recipe
        return
    # Moved before anything is checked, since the new run is made at this path. The recipe may start from the old run or
    # use its data, so it follows the move.
    moved = move_aside(path)
    try:
        yield recipe if rows is not None else moved_with(recipe, path, moved)
    finally:
        if not path.exists():
            moved.rename(path)
        elif is_replaceable(path):
            update_moved_paths(moved, path)
            if progress is not None:  # not before: a refused request moves it back
                progress.note(f"what was at {path} is now at {moved}")


@contextmanager
def _explained(path: Path, recipe: Recipe) -> Iterator[None]:
    """Explain errors that end a run: which setting to lower, and how to resume."""
    size = recipe.train.per_device_eval_batch_size
    hint = f"use a smaller model, or a lower train.per_device_eval_batch_size ({size}), which scores the same"
    with _with_resume_hint(path), ending_at_once(), out_of_memory("outside training", hint):
        yield


@contextmanager
def _with_resume_hint(path: Path) -> Iterator[None]:
    """Every process of a launch gives the same hint."""
    resume = f"resume with --output {path} --resume"
    try:
        yield
    except Interrupted as stop:
        stop.hint = resume
        if stop.exit_code == 128 + signal.SIGTERM and a_process_died():
            # The launcher ends all processes when one has died; that one is the cause, not the SIGTERM.
            lost = _lost_a_process()
            stop.message, stop.hint = lost.message, f"{lost.hint}. Then {resume}"
        raise
    except KeyboardInterrupt as stop:
        raise Interrupted(
            f"stopped; what was saved in {path} is kept", hint=resume, signal_number=signal.SIGINT
        ) from stop
    except Exception as error:
        if contact_is_lost(error):
            raise _lost_a_process() from error
        if worker := loader_worker_death(error):
            raise RunFailed(
                f"a data loading process ({worker[0]}) {worker[1]}; checkpoints in {path} are intact",
                hint=f"{worker[1].hint}; train.dataloader_num_workers=0 loads data in the training process. "
                f"Then {resume}",
            ) from error
        if disk_is_full(error):
            raise RunFailed(
                f"the disk is full: {path} could not be finished; its checkpoints are intact",
                hint=f"free some space, then {resume}",
            ) from error
        raise


def _lost_a_process() -> RunFailed:
    return RunFailed(
        "another process of this launch ended, and this one can't continue alone",
        hint="see its own message. If there is none, a signal killed it, and the launcher's report has the exit code. "
        f"-9 is SIGKILL: {Death('SIGKILL').hint}. -4 is SIGILL: {Death('SIGILL').hint}. If it ran on another machine, "
        "see the log there",
    )


def refuse_other_recipe(run: RunDir, recipe: Recipe) -> Recipe:
    """Refuse to resume a run with another recipe; only settings that do not change the result may differ.

    Returns the recipe, with the dtype that the run was begun with if the recipe leaves it to the machine.
    """
    begun = read_recipe(run)
    recipe = with_dtype_of(begun, recipe)
    # ``begun`` has the place where stored rows are now, ``stated`` the one where they were when the run began.
    stated, name = load_recipe(run.recipe).data.dataset_name, recipe.data.dataset_name
    if name == stated or _same_path(name, begun.data.dataset_name):  # stored data, before or after the run was moved
        recipe = with_data(recipe, begun.data.dataset_name)
    before, now = (one.model_dump(exclude=MAY_CHANGE) for one in (begun, recipe))
    changed = [
        f"{section}.{key}: {before[section].get(key)!r} → {value!r}"
        for section, values in now.items()
        for key, value in values.items()
        if before[section].get(key) != value
    ]
    if changed:
        raise HftuneError(
            f"{run.path} was begun with another recipe; changed: {'; '.join(changed)}",
            hint=f"leave those out to resume it (--output {run.path} --resume), or use another --output",
        )
    return recipe


def with_dtype_of(begun: Recipe, recipe: Recipe) -> Recipe:
    """The recipe with bf16 and fp16 as a run states them, if the recipe leaves them to the machine."""
    chosen = {name: getattr(begun.train, name) for name in ("bf16", "fp16") if getattr(recipe.train, name) is None}
    return recipe.changed("train", **chosen)


def _same_path(one: str, other: str) -> bool:
    """Whether two names are one file or folder, written in two ways."""
    try:
        return Path(one).exists() and Path(one).resolve() == Path(other).resolve()
    except (OSError, RuntimeError, ValueError):
        return False
