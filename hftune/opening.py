"""Opening a run directory: created, resumed or put in place of another run, locked, with every end explained.

Used by ``hftune.pipeline``.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hftune.child_process import Death, loader_worker_death
from hftune.config.load import load_recipe
from hftune.config.recipe import Recipe
from hftune.data.in_memory import InMemoryData
from hftune.errors import HftuneError, Interrupted, RunFailed
from hftune.files import disk_is_full, remove_staged
from hftune.runs.aside import move_aside, moved_with, point_to
from hftune.runs.directory import DATA, RunDir, is_run, with_data
from hftune.training.launch import a_process_died, agreed, contact_is_lost, is_main_process, wait_for_everyone
from hftune.training.memory import out_of_memory
from hftune.training.progress import Listener
from hftune.training.stopping import ending_at_once

MAY_CHANGE: Any = {"hub": True, "train": {"save_total_limit"}, "task": {"baselines"}}
"""Settings that can differ when a run is resumed: where it is published, how much disk it takes, what it is compared
with."""


@contextmanager
def opened(
    path: Path,
    recipe: Recipe,
    resume: bool,
    *,
    overwrite: bool = False,
    rows: InMemoryData | None = None,
    listener: Listener | None = None,
) -> Iterator[tuple[RunDir, Recipe]]:
    """The run directory, locked by this process; removed again when the request was refused.

    Args:
        path: Where the run is or will be.
        recipe: What was requested.
        resume: Resume the run at this path, if there is one.
        overwrite: Move a run at this path aside; it is moved back when the request is refused.
        rows: Data that were given from Python, to be stored with the run.
        listener: Progress callback.

    Yields:
        The run, and the recipe as it applies there.
    """
    if not is_main_process():
        with _says_how_to_go_on(path), ending_at_once(), out_of_memory(*_what_to_lower(recipe)):
            wait_for_everyone()  # until the main process has made it
            if not path.is_dir():
                raise HftuneError(
                    f"the main process has made the run directory {path}, but this process does not see it",
                    hint="name an --output on a file system that all machines share",
                )
            yield RunDir(path), agreed(recipe)
        return
    recipe = recipe if rows is None else with_data(recipe, path / DATA)
    moved: Path | None = None
    held = False  # what another process is about to use is not ours to remove
    new_folders = [folder for folder in path.parents if not folder.exists()]
    if resume and is_run(path):
        recipe = refuse_other_recipe(RunDir.open(path, to_train=True), recipe)
    elif overwrite and is_run(path):
        moved = move_aside(path)
        recipe = recipe if rows is not None else moved_with(recipe, path, moved)
    try:
        run = RunDir(path) if resume and is_run(path) else RunDir.create(path)
        with run.locked(), _says_how_to_go_on(path), ending_at_once(), out_of_memory(*_what_to_lower(recipe)):
            held = True
            remove_staged(path)
            if rows is not None:
                rows.store(run.data, begun=is_run(path))
            if moved is not None and listener is not None:
                listener.note(f"the run that was at {path} is now at {moved}")
            wait_for_everyone()
            yield run, agreed(recipe)
    finally:
        if held:
            run.discard_if_not_begun()
        if not path.exists():
            _remove_empty(new_folders)
        if moved is not None:
            # Nothing took its place: the request was refused.
            point_to(moved, path) if is_run(path) else _move_back(moved, path)


def _remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders that were made for a run that was refused, innermost first; one that is used stays."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _move_back(moved: Path, path: Path) -> None:
    if not path.exists():
        moved.rename(path)


@contextmanager
def _says_how_to_go_on(path: Path) -> Iterator[None]:
    """Explain an end that leaves a run to go on with; every process of a launch says the same."""
    try:
        yield
    except Interrupted as stop:
        stop.hint = f"go on with --output {path} --resume"
        if stop.exit_code == 128 + signal.SIGTERM and a_process_died():
            # The launcher ends all processes when one has died; that one is the cause, not the SIGTERM.
            lost = _lost_a_process()
            stop.message, stop.hint = lost.message, f"{lost.hint}. Then continue with --output {path} --resume"
        raise
    except KeyboardInterrupt as stop:
        raise Interrupted(
            f"stopped; what was saved in {path} is kept",
            hint=f"go on with --output {path} --resume",
            signal_number=signal.SIGINT,
        ) from stop
    except Exception as error:
        if contact_is_lost(error):
            raise _lost_a_process() from error
        worker = loader_worker_death(error)
        if worker is not None:
            raise RunFailed(
                f"a data loading process ({worker[0]}) {worker[1]}; checkpoints in {path} are intact",
                hint=f"{worker[1].hint}; train.dataloader_num_workers=0 loads data in the training process. Then "
                "continue with "
                f"--output {path} --resume",
            ) from error
        if not disk_is_full(error):
            raise
        raise RunFailed(
            f"the disk is full: {path} could not be finished; its checkpoints are intact",
            hint=f"free some space, then go on with --output {path} --resume",
        ) from error


def _lost_a_process() -> RunFailed:
    return RunFailed(
        "another process of this launch ended, and this one can't continue alone",
        hint="see its own message. If there is none, a signal killed it, and the launcher's report has the exit code. "
        f"-9 is SIGKILL: {Death('SIGKILL').hint}. -4 is SIGILL: {Death('SIGILL').hint}. If it ran on another machine, "
        "see the log there",
    )


def _what_to_lower(recipe: Recipe) -> tuple[str, str]:
    """What memory goes with before and after training, where rows are encoded and scored."""
    size = recipe.train.per_device_eval_batch_size
    return (
        "outside training",
        f"take a smaller model, or a lower train.per_device_eval_batch_size ({size}), which scores the same",
    )


def refuse_other_recipe(run: RunDir, recipe: Recipe) -> Recipe:
    """A run continues with the recipe it began with; only what does not change the result may change.

    Returns:
        The recipe, with the dtype that the run began with where the recipe leaves it to the machine.

    Raises:
        HftuneError: Another setting differs.
    """
    begun = run.read_recipe()
    recipe = with_dtype_of(begun, recipe)
    stated, name = load_recipe(run.recipe).data.dataset_name, recipe.data.dataset_name
    if name == stated or _same_path(name, begun.data.dataset_name):  # stored rows, before or after the run was moved
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
            hint=f"leave those out to go on (--output {run.path} --resume), or begin anew with another --output",
        )
    return recipe


def with_dtype_of(begun: Recipe, recipe: Recipe) -> Recipe:
    """The recipe with bf16 and fp16 as a run states them, where the recipe leaves them to the machine."""
    chosen = {name: getattr(begun.train, name) for name in ("bf16", "fp16") if getattr(recipe.train, name) is None}
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=chosen)})


def _same_path(one: str, other: str) -> bool:
    """Whether two names are one file or folder, written in two ways."""
    try:
        return Path(one).exists() and Path(one).resolve() == Path(other).resolve()
    except (OSError, RuntimeError, ValueError):
        return False
