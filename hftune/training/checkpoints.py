"""Checkpoints that are complete or absent; finding the newest complete one; saving and restoring weights.

A checkpoint is written into a hidden staging folder; each file is synced and hashed; the manifest, with the hashes and
the settings that must not change, is written last; then the folder is renamed into place. A folder that is damaged
later is recognized by its hashes, skipped, and not counted when old checkpoints are removed. A folder without a
manifest of ours is not loaded and never removed: it may belong to someone else.

Trainer writes its files in place, trainer_state.json last, and ``get_last_checkpoint`` takes the highest number without
looking inside, so a process that is killed while it saves leaves a checkpoint that is resumed to another result.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from hftune import pickles
from hftune.config.values import flat
from hftune.errors import HftuneError, RunFailed
from hftune.files import disk_is_full, read_json, sha256, share, write_json
from hftune.portability import sync

MANIFEST = "manifest.json"
WEIGHTS = "trainable.safetensors"
STATE = "trainer_state.json"
PROGRESS = "progress.json"
"""What Trainer's own state leaves out: the loss since the last log, the time spent, whether training is finished."""
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
"""Suffix for a folder that is not ours and has the name of a checkpoint that is about to be saved."""
SHOWN_VALUE = 24
MIN_SPACE = 1 << 16
"""A disk with less free space counts as full, whatever error a library raises."""
WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")
"""What accelerate's wrappers (activation checkpointing, torch.compile) add to names of weights."""


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run, as its main process writes them."""

    directory: Path
    keep: int | None
    settings: Mapping[str, Any]
    """What must be the same when the run is resumed; a JSON object."""

    @property
    def staging(self) -> Path:
        """Where a checkpoint is until it is complete."""
        return self.directory / STAGING

    def at(self, step: int) -> Path:
        """The folder of the checkpoint of one step."""
        return self.directory / f"{PREFIX}{step}"

    def recover(self) -> None:
        """After a kill: rename a checkpoint that was complete but not yet renamed, and remove all other remains.

        So a step that is saved again never leaves a moment in which neither the old checkpoint nor the new one counts.
        """
        for staged in listed(self.staging):
            if not self.at(step_of(staged)).exists() and fault(staged) is None:
                staged.rename(self.at(step_of(staged)))
                sync(self.directory)
        self.clear()

    def clear(self) -> None:
        """Remove incomplete folders."""
        shutil.rmtree(self.staging, ignore_errors=True)
        for left in self.directory.glob(f"{REMOVED}*"):
            shutil.rmtree(left, ignore_errors=True)

    def begin(self) -> None:
        """Make an empty staging folder."""
        self.clear()
        self.staging.mkdir(parents=True)

    def commit(self, step: int, best: int | None) -> None:
        """Write the manifest of a staged checkpoint and move it into its place."""
        staged = self.staging / self.at(step).name
        # The order makes this safe against a power failure: every file is on the disk before the manifest names it,
        # the manifest before the folder gets its name, and the old checkpoint goes last. A rename is atomic, so at each
        # moment one of both counts.
        files = sorted(p for p in staged.rglob("*") if p.is_file())
        manifest = {
            "step": step,
            "best": best,
            "settings": dict(self.settings),
            "files": {p.relative_to(staged).as_posix(): _synced(p) for p in files},
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

    def rotate(self, best: int | None, broken: Collection[str] = (), newest: int | None = None) -> None:
        """Remove old checkpoints beyond ``keep``, and ``broken`` ones; the best and the newest always stay.

        Those after ``newest`` are left from before a resume from an older checkpoint, and are the first to be removed.
        """
        paths = [p for p in listed(self.directory) if is_ours(p)]
        useless = [p for p in paths if p.name in broken]
        whole = [p for p in paths if p not in useless]
        newest = max(map(step_of, whole), default=0) if newest is None else newest
        ranked = sorted(whole, key=lambda p: (step_of(p) != best, step_of(p) > newest, -step_of(p)))
        # With keep=1 two stay: the best, and the newest, which resume needs.
        kept = {*ranked[: self.keep], self.at(newest)}
        for path in paths:
            if path in useless or path not in kept:
                self._remove(path)

    def failed(self, error: Exception, step: int) -> RunFailed:
        """The error of a checkpoint that could not be written, which is removed; it names the last intact one."""
        full = disk_is_full(error) or shutil.disk_usage(self.directory).free < MIN_SPACE
        self.clear()
        newest, _ = newest_complete(self.directory)
        kept = f"{newest.name} is intact" if newest else "there is no earlier checkpoint"
        what = f"the checkpoint of step {step} could not be saved in {self.directory}"
        if full:
            return RunFailed(
                f"the disk is full: {what}; {kept}",
                hint="free some space, or lower train.save_total_limit, then continue with --resume",
            )
        reason = (str(error) or repr(error)).splitlines()[0]
        return RunFailed(f"{what}: {reason}; {kept}", hint="fix the cause, then continue with --resume")

    def _move_aside(self, path: Path) -> None:
        number = 1
        while (aside := path.with_name(f"{path.name}{UNKNOWN}{f'-{number}' if number > 1 else ''}")).exists():
            number += 1
        path.rename(aside)

    def _remove(self, path: Path) -> None:
        # Renamed first, so that a process killed halfway leaves nothing that looks like a checkpoint.
        shutil.rmtree(path.rename(self.directory / f"{REMOVED}{path.name}"))


def _seal(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _synced(path: Path) -> dict[str, Any]:
    share(path)
    sync(path)
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


# ---- finding one ----


def step_of(path: Path) -> int:
    """The step after which a checkpoint was saved."""
    return int(path.name.removeprefix(PREFIX))


def listed(directory: Path) -> list[Path]:
    """All checkpoint folders, newest first, complete or not."""
    if not directory.is_dir():
        return []
    found = [p for p in directory.glob(f"{PREFIX}*") if p.is_dir() and p.name.removeprefix(PREFIX).isdigit()]
    return sorted(found, key=step_of, reverse=True)


def newest_complete(directory: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is complete and whose best checkpoint is too, and a line about each skipped one."""
    skipped: list[str] = []
    faults: dict[Path, str | None] = {}
    for path in listed(directory):
        reason = faults.setdefault(path, fault(path))
        if reason is None:
            best = read_manifest(path)["best"]
            needed = path if best is None else directory / f"{PREFIX}{best}"
            damage = faults.setdefault(needed, fault(needed))
            reason = f"the best weights so far, in {needed.name}, are lost: {damage}" if damage else None
        if reason is None:
            return path, skipped
        skipped.append(f"{path.name}: {reason}")
    return None, skipped


def fault(path: Path) -> str | None:
    """What is wrong with a checkpoint's files; None for a complete one. Reads every byte."""
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
    for name, saved in files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != saved["bytes"]:
            return f"{name} has {file.stat().st_size:,} bytes of {saved['bytes']:,}"
        if sha256(file) != saved["sha256"]:
            return f"{name} is not as it was saved"
    return None


def is_ours(path: Path) -> bool:
    """Whether a folder has an intact manifest, even if other files are damaged; only such folders are removed."""
    try:
        read_manifest(path)
    except ValueError:
        return False
    return True


def read_manifest(path: Path) -> dict[str, Any]:
    """A checkpoint's step, best step, settings and files; ValueError if the file is cut off or altered."""
    try:
        manifest = read_json(path / MANIFEST)
    except AssertionError as error:
        raise ValueError(str(error)) from error
    if manifest.pop("seal", None) != _seal(manifest):
        raise ValueError(f"{path / MANIFEST} does not match its checksum")
    return manifest


# ---- resuming from one ----


def check_checkpoint(path: Path, settings: Mapping[str, Any], total: int, *, stops_early: bool) -> None:
    """Refuse a complete checkpoint that has other settings, could run code, or contradicts itself or the run.

    ``total`` is the number of steps of the whole run; ``stops_early``, whether it can finish before.
    """
    refuse_changed(path, settings)
    refuse_unsafe(path)
    # Checksums find accidents. A run directory can also come from a stranger, who can write matching checksums: a
    # checkpoint at step 10¹² of 30 would let Trainer skip all training and call the run complete.
    wrong = _contradiction(path, total, stops_early=stops_early)
    if wrong:
        raise HftuneError(
            f"{path} contradicts itself or this run: {wrong}",
            hint=f"it was changed after it was saved; delete {path.name} to resume from an older checkpoint, or start "
            "a new run with another --output",
        )


def refuse_other_data(directory: Path, fingerprints: Mapping[str, str]) -> None:
    """Refuse to resume with other data, before anything is computed from them."""
    path = next((path for path in listed(directory) if is_ours(path)), None)
    if path is not None:
        stated = read_manifest(path)["settings"]
        refuse_changed(path, {**stated, "data": dict(fingerprints)} if "data" in stated else stated)


def refuse_changed(path: Path, settings: Mapping[str, Any]) -> None:
    """Refuse to resume a checkpoint with other settings than those it was saved with."""
    # By dotted name, so that of many fingerprints only the one that differs is shown.
    before, now = flat(read_manifest(path)["settings"]), flat(settings)
    changed = [
        f"{name}: {_short(before.get(name))} → {_short(now.get(name))}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    if changed:
        raise HftuneError(
            f"{path.name} was saved with other settings or other data, so resuming would give another result: "
            f"{'; '.join(changed)}",
            hint="resume with the settings that the run began with, or start a new run in another output directory",
        )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_VALUE else f"{text[:SHOWN_VALUE]}…"


def refuse_unsafe(path: Path) -> None:
    """Refuse a checkpoint with a pickle that holds more than tensors and numbers: reading it could run code."""
    faults = {file: pickles.metadata_fault(file) for file in path.rglob(METADATA)}
    with pickles.weights_only():
        for pattern in PICKLES:
            faults |= {file: pickles.fault(file) for file in path.rglob(pattern) if file.name != NOT_READ}
    for file, reason in sorted(faults.items()):
        if reason:
            hint = "this checkpoint was not written by hftune: don't resume it, start a new run"
            raise pickles.refused(file, reason, hint=hint)


def _contradiction(path: Path, total: int, *, stops_early: bool) -> str | None:
    manifest, state, progress = read_manifest(path), read_json(path / STATE), read_json(path / PROGRESS)
    step, best = step_of(path), manifest.get("best")
    for name, stated in ((MANIFEST, manifest.get("step")), (STATE, state.get("global_step"))):
        if not _is_count(stated) or stated != step:
            return f"{name} is at step {_shown(stated)}, its folder at step {step:,}"
    if step > total:
        return f"it is at step {step:,}, and the run has {total:,} steps"
    if best is not None and not (_is_count(best) and 1 <= best <= step):
        return f"its best step is {_shown(best)}"
    if (other := state.get("best_global_step")) != best:
        return f"the best step is {_shown(best)} in {MANIFEST} and {_shown(other)} in {STATE}"
    finished = progress.get("finished")
    if not isinstance(finished, bool) or (finished and step < total and not stops_early):
        return f"{PROGRESS} calls training finished ({_shown(finished)}) at step {step:,} of {total:,}"
    losses = progress.get("loss")
    numbers = [progress.get("seconds"), progress.get("other_seconds"), *(losses if isinstance(losses, list) else [])]
    if len(numbers) < 3 or not all(isinstance(one, int | float) and math.isfinite(one) for one in numbers):
        return f"{PROGRESS} has no seconds, other_seconds and loss as numbers"
    return None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    return f"{value:,}" if _is_count(value) else repr(value)[:40]


# ---- weights ----
#
# Every parameter with ``requires_grad`` and every buffer is kept under its own name, which is exact for each tuning
# method. Trainer's own way through adapters is not: peft saves the computed prompt of p-tuning and of a projected
# prefix, not the encoder that computes it. Frozen weights are only fingerprinted. Sharded weights are gathered one by
# one: the file is the same for every launch, and no GPU needs memory for all of them at once.


def trained_weights(model: nn.Module) -> dict[str, Tensor]:
    """Trainable parameters and buffers by name; tied ones under their first name."""
    tensors = {name: value for name, value in model.named_parameters() if value.requires_grad}
    return {_plain(name): value for name, value in {**tensors, **dict(model.named_buffers())}.items()}


def _plain(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def save_weights(model: nn.Module, folder: Path, *, write: bool = True) -> None:
    """Write the trained weights; of sharded ones, processes that don't ``write`` contribute their shards."""
    tensors = {}
    for name, value in trained_weights(model).items():
        with _gathered(value) as whole:
            if write:
                # Cloned, since buffers may be views of one another, which safetensors refuses.
                tensors[name] = whole.detach().to("cpu", copy=True).contiguous()
    if write:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


@contextmanager
def _gathered(value: Tensor) -> Iterator[Tensor]:
    if isinstance(value, DTensor):
        yield value.full_tensor()
    elif "ds_id" in vars(value):  # DeepSpeed's ZeRO-3 marks what it has sharded
        from deepspeed.zero import GatheredParameters

        with GatheredParameters([value]):
            yield value
    else:
        yield value


def load_weights(model: nn.Module, folder: Path) -> None:
    """Restore the trained weights, bit for bit; refuse those of another model."""
    saved, here = load_file(folder / WEIGHTS), trained_weights(model)
    strange = sorted(saved.keys() ^ here.keys()) or [n for n in saved if saved[n].shape != here[n].shape]
    if strange:
        raise HftuneError(
            f"{folder} was saved from another model: {len(strange)} of {len(here)} weights differ in name or shape, "
            f"first {strange[0]}",
            hint="resume with the model and method that the run began with",
        )
    with torch.no_grad():
        for name, value in here.items():
            if isinstance(value, DTensor):
                # Every process has the file, so each takes its own shard of it and nothing is sent.
                given = saved[name].to(value.device_mesh.device_type)
                value.copy_(distribute_tensor(given, value.device_mesh, value.placements, src_data_rank=None))
            else:
                value.copy_(saved[name])


def frozen_fingerprint(model: nn.Module) -> str:
    """Hash of all frozen parameters: resuming with others must be refused."""
    digest = hashlib.sha256()
    for name, value in model.named_parameters():
        if not value.requires_grad:
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
