"""Checkpoints that are complete or absent. ``hftune.training.trainer`` saves through ``Checkpoints``; resume asks it
for the newest one that can be trusted.

A checkpoint is written into a hidden staging folder; each file is synced and hashed; the manifest, with the hashes and
the settings that must not change, is written last; then the folder is renamed into place. A folder that was hurt later
is found out by its hashes, passed over, and never counted when old checkpoints are removed. A folder without a manifest
of ours is not loaded and never removed: whoever put it there may need it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hftune import pickles
from hftune.errors import HftuneError, RunFailed
from hftune.files import disk_is_full, read_json, sha256, share, write_json
from hftune.portability import sync

MANIFEST = "manifest.json"
PICKLES = ("*.pt", "*.pth", "*.bin")
"""States of optimizer, scheduler, scaler and random generators, as Trainer, accelerate and DeepSpeed save them."""
NOT_READ = "training_args.bin"
"""Trainer writes it and nothing reads it."""
METADATA = "*.metadata"
"""The index of a state that FSDP saved in shards: .metadata, or __0.metadata of one process, which torch reads too."""
PREFIX = "checkpoint-"
STAGING = ".staging"
REMOVED = ".removed-"
UNKNOWN = "-unknown"
"""Added to the name of a folder that is not ours and has the name of a checkpoint that is about to be saved."""
SHOWN_VALUE = 24
LEAST_SPACE = 1 << 16
"""A disk with less is full, whatever a library says about why it could not write."""


def step_of(path: Path) -> int:
    """The update after which a checkpoint was saved."""
    return int(path.name.removeprefix(PREFIX))


def listed(directory: Path) -> list[Path]:
    """All checkpoint folders, newest first, whatever their state."""
    if not directory.is_dir():
        return []
    found = [p for p in directory.glob(f"{PREFIX}*") if p.is_dir() and p.name.removeprefix(PREFIX).isdigit()]
    return sorted(found, key=step_of, reverse=True)


def fault(path: Path) -> str | None:
    """What is wrong with a checkpoint's files, in words; None for a complete one. Reads every byte."""
    try:
        return _first_fault(path)
    except OSError as error:
        return f"{Path(error.filename or path).name} can't be read: {error.strerror}"


def _first_fault(path: Path) -> str | None:
    if not (path / MANIFEST).is_file():
        return f"{MANIFEST} is missing, so hftune did not save it; it is left as it is"
    try:
        files = read_manifest(path)["files"]
    except ValueError:
        return f"{MANIFEST} is not as it was saved, so the folder may not be hftune's; it is left as it is"
    for name, sealed in files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != sealed["bytes"]:
            return f"{name} has {file.stat().st_size:,} bytes of {sealed['bytes']:,}"
        if sha256(file) != sealed["sha256"]:
            return f"{name} is not as it was saved"
    return None


def is_ours(path: Path) -> bool:
    """Whether a folder has a manifest with our seal, even if other files are damaged; only such folders are removed."""
    try:
        read_manifest(path)
    except ValueError:
        return False
    return True


def read_manifest(path: Path) -> dict[str, Any]:
    """A checkpoint's step, best step, settings and files.

    Raises:
        ValueError: It is cut off or altered.
    """
    try:
        manifest = read_json(path / MANIFEST)
    except AssertionError as error:
        raise ValueError(str(error)) from error
    if manifest.pop("seal", None) != _seal(manifest):
        raise ValueError(f"{path / MANIFEST} does not match its seal")
    return manifest


def newest_complete(directory: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole and whose best checkpoint is whole too.

    Returns:
        Its path, or None where there is none, and a line on each newer one that was passed over.
    """
    passed_over: list[str] = []
    faults: dict[Path, str | None] = {}
    for path in listed(directory):
        reason = faults.setdefault(path, fault(path))
        if reason is None:
            best = read_manifest(path)["best"]
            needed = path if best is None else directory / f"{PREFIX}{best}"
            hurt = faults.setdefault(needed, fault(needed))
            reason = f"the best weights so far, in {needed.name}, are lost: {hurt}" if hurt else None
        if reason is None:
            return path, passed_over
        passed_over.append(f"{path.name}: {reason}")
    return None, passed_over


def refuse_changed(path: Path, settings: Mapping[str, Any]) -> None:
    """Refuse to go on from a checkpoint with other settings than those it was saved with.

    Raises:
        HftuneError: Names each setting that differs.
    """
    before, now = _flat(read_manifest(path)["settings"]), _flat(settings)
    changed = [
        f"{name}: {_short(before.get(name))} → {_short(now.get(name))}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    if changed:
        raise HftuneError(
            f"{path.name} was saved with other settings or other data, so going on would give another result: "
            f"{'; '.join(changed)}",
            hint="resume with what the run began with, or begin a new run in another output directory",
        )


def refuse_unsafe(path: Path) -> None:
    """Refuse a checkpoint with a pickle that holds more than tensors and numbers: reading it could run code.

    Checksums are no protection: an author of a changed file can also write its checksum.

    Raises:
        HftuneError: Names the file.
    """
    faults = {file: pickles.metadata_fault(file) for file in path.rglob(METADATA)}
    for pattern in PICKLES:
        with pickles.weights_only():
            faults |= {file: pickles.fault(file) for file in path.rglob(pattern) if file.name != NOT_READ}
    for file, reason in sorted(faults.items()):
        if reason:
            raise pickles.refused(
                file, reason, hint="this checkpoint was not written by hftune: don't resume it, start a new run"
            )


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by dotted name, so that of many fingerprints only the one that differs is shown."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def _short(value: Any) -> str:
    """A value as it is shown; of a fingerprint the beginning."""
    text = repr(value)
    return text if len(text) <= SHOWN_VALUE else f"{text[:SHOWN_VALUE]}…"


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run, as its main process writes them."""

    directory: Path
    keep: int | None
    settings: Mapping[str, Any]
    """What must be the same when the run is resumed; a JSON object."""

    @property
    def staging(self) -> Path:
        """Where a checkpoint lies while it is being written."""
        return self.directory / STAGING

    def at(self, step: int) -> Path:
        """The folder of the checkpoint of one step."""
        return self.directory / f"{PREFIX}{step}"

    def recover(self) -> None:
        """After a kill: a checkpoint that was sealed but not yet in its place is put there, all else that is left goes.

        So a step that is saved again never leaves a moment in which neither the old checkpoint nor the new one counts.
        """
        for staged in listed(self.staging):
            if not self.at(step_of(staged)).exists() and fault(staged) is None:
                staged.rename(self.at(step_of(staged)))
                sync(self.directory)
        self.clear()

    def clear(self) -> None:
        """Remove what is half written or half removed."""
        shutil.rmtree(self.staging, ignore_errors=True)
        for left in self.directory.glob(f"{REMOVED}*"):
            shutil.rmtree(left, ignore_errors=True)

    def begin(self) -> None:
        """Make an empty staging folder."""
        self.clear()
        self.staging.mkdir(parents=True)

    def commit(self, step: int, best: int | None) -> None:
        """Seal the staged checkpoint of a step and put it in its place."""
        staged = self.staging / self.at(step).name
        files = sorted(p for p in staged.rglob("*") if p.is_file())
        manifest = {
            "step": step,
            "best": best,
            "settings": dict(self.settings),
            "files": {p.relative_to(staged).as_posix(): _sealed(p) for p in files},
        }
        for folder in {p.parent for p in files}:
            sync(folder)
        write_json(staged / MANIFEST, {**manifest, "seal": _seal(manifest)})
        sync(staged)
        if is_ours(self.at(step)):
            self._remove(self.at(step))
        elif self.at(step).exists():
            self._move_aside(self.at(step))
        staged.rename(self.at(step))
        sync(self.directory)
        self.staging.rmdir()

    def rotate(self, best: int | None, broken: Collection[str] = ()) -> None:
        """Remove the oldest checkpoints beyond ``keep``; the newest, the best and the broken are apart from the count.

        Folders that are not ours are neither counted nor removed.

        Args:
            best: Step of the best checkpoint, which always stays.
            broken: Names of checkpoints known to be broken: they are no use, go at once and are not counted.
        """
        paths = [p for p in listed(self.directory) if is_ours(p)]
        useless = [p for p in paths if p.name in broken]
        whole = [p for p in paths if p not in useless]
        # The best comes first in line, then the newest: with keep=1 both stay, since resume needs the newest.
        wanted = sorted(whole, key=lambda p: (step_of(p) != best, -step_of(p)))[: self.keep]
        for path in [*useless, *whole]:
            if path not in [*wanted, *whole[:1]]:
                self._remove(path)

    def failed(self, error: Exception, step: int) -> RunFailed:
        """Take away the checkpoint that could not be written; the error tells that and what is left to go on from."""
        full = disk_is_full(error) or shutil.disk_usage(self.directory).free < LEAST_SPACE
        self.clear()
        left, _ = newest_complete(self.directory)
        kept = f"{left.name} is intact" if left else "there is no earlier checkpoint"
        what = f"the checkpoint of step {step} could not be saved in {self.directory}"
        if full:
            return RunFailed(
                f"the disk is full: {what}; {kept}",
                hint="free some space, or lower train.save_total_limit, then go on with --resume",
            )
        return RunFailed(
            f"{what}: {(str(error) or repr(error)).splitlines()[0]}; {kept}",
            hint="mend the cause, then go on with --resume",
        )

    def _move_aside(self, path: Path) -> None:
        """Rename what is not ours, to a name that nothing has."""
        number = 1
        while (aside := path.with_name(f"{path.name}{UNKNOWN}{f'-{number}' if number > 1 else ''}")).exists():
            number += 1
        path.rename(aside)

    def _remove(self, path: Path) -> None:
        # Renamed first, so that a process killed halfway leaves nothing that looks like a checkpoint.
        gone = path.rename(self.directory / f"{REMOVED}{path.name}")
        shutil.rmtree(gone)


def _seal(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _sealed(path: Path) -> dict[str, Any]:
    share(path)
    sync(path)
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}
