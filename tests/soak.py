"""A soak: kill -9 at random moments, many times, over all tasks. Each resume must succeed and lose nothing.

python tests/soak.py --folder soak          1,000 kills; the same command continues an interrupted soak
python tests/soak.py --kills 20 --seed 7    a short one, in a temporary folder

Each run is the whole pipeline, from the data to the report. It is killed again and again until it gets through: half of
the time at a random moment of training, otherwise after a random share of its CPU time, or at a random file that it
opens, renames or removes. Then all that it left must equal what an uninterrupted run leaves, bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from crash_case import differences, in_rank, recipe, remains, write_data
from forks import joined, start, start_ranks

from hftune.files import read_json, write_json
from hftune.pipeline import verify
from hftune.pipeline.train import train
from hftune.progress import ProgressReporter
from hftune.recipe import Recipe
from hftune.training.checkpoints import fault, listed, step_of

LONGER = {"train.num_train_epochs": 6}
"""36 steps in place of 12, so that most of a run is training and not loading."""
HALF = {"train.per_device_train_batch_size": 4, "train.use_cpu": True}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "classify": ("classify", "full", {"train.eval_steps": 4}),
    "classify, two processes": (
        "classify",
        "full",
        {"train.per_device_train_batch_size": 4, "train.eval_steps": 4, "train.use_cpu": True},
    ),
    "lora, two checkpoints": ("classify", "lora", {"train.eval_steps": 3, "train.save_total_limit": 2}),
    "prefix": ("classify", "prefix", {"train.eval_steps": 4}),
    "head, cached features": ("classify", "head", {"train.eval_steps": 4}),
    "joint": (
        "joint",
        "full",
        {"train.per_device_train_batch_size": 4, "train.gradient_accumulation_steps": 2, "train.eval_steps": 5},
    ),
    "mlm": ("mlm", "full", {"train.dataloader_num_workers": 1}),
    "span": ("span", "muon", {"train.eval_steps": 4, "train.save_total_limit": 1}),
    "span, two processes": ("span", "full", {**HALF, "train.eval_steps": 4}),
    "clm": ("clm", "full", {"train.eval_steps": 5}),
    "answer": ("answer", "full", {"train.eval_steps": 4}),
}
TWO_PROCESSES = tuple(name for name in CASES if name.endswith("two processes"))
WAYS = ("training", "training", "clock", "file")
"""How the next kill is drawn."""
POLL = 0.01
EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir")
SPEED = "speed"
NOT_COMPARED = ("README.md",)
"""Of model/: the card tells how long training took."""


@dataclass(frozen=True)
class Kill:
    """When one session is killed; never, as it is."""

    way: str = "never"
    cpu_seconds: float = float("inf")
    """By the process that watches."""
    file: int = 0
    """From inside, at the n-th file event in the run's folder."""
    training_seconds: float = float("inf")
    """From inside, this long after training began."""
    rank: int = 0
    """Which of two processes kills itself in training."""


NEVER = Kill()


class Log(ProgressReporter):
    """Keeps stages and notes on disk, where they outlive the process."""

    def __init__(self, path: Path, kill: Kill = NEVER) -> None:
        self.path = path
        self.kill = kill
        self.began = time.monotonic()

    def stage(self, text: str) -> None:
        if text == "training":
            self.began = time.monotonic()
            if self.kill.way == "training" and int(os.environ.get("RANK", "0")) == self.kill.rank:
                # A thread, so that the kill comes in the middle of whatever torch computes.
                timer = threading.Timer(self.kill.training_seconds, os.kill, (os.getpid(), 9))
                timer.daemon = True
                timer.start()
        elif text == "saving":
            self.note(f"training took {time.monotonic() - self.began}")
        with self.path.open("a") as file:
            file.write(f"stage {text}\n")

    def note(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(f"note {text}\n")

    warn = note


def live(wanted: Recipe, folder: Path, log: Path, kill: Kill = NEVER) -> None:
    """One session, in a process of its own: the whole pipeline, killed from inside if ``kill`` demands it."""
    seen = 0
    os.setsid()  # so that what it forks can be ended with it

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in EVENTS and str(arguments[0]).startswith(str(folder)):
            seen += 1
            if seen == kill.file:
                os.kill(os.getpid(), 9)

    verify._SERVERS.append(verify._fork_server())
    sys.addaudithook(watch)
    train(wanted, folder, resume=True, progress=Log(log, kill))
    Log(log).note(f"files {seen}")


def outcome(folder: Path) -> dict[str, Any]:
    """All that a finished run leaves, without times."""
    metrics = read_json(folder / "metrics.json")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    read = [path for path in files if path.is_relative_to(folder / "model") and path.name not in NOT_COMPARED]
    read += [path for path in files if path.is_relative_to(folder / "predictions")] + [folder / "recipe.yaml"]
    return {
        "metrics": {key: value for key, value in metrics.items() if key != SPEED},
        "files": [str(path.relative_to(folder)) for path in files],
        "bytes": {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in read},
        **remains(folder),
    }


@dataclass
class Tally:
    """What came of the soak; the file in its folder has the same fields."""

    kills: int = 0
    inside_saves: int = 0
    runs: int = 0
    resumes: int = 0
    stages: Counter[str] = field(default_factory=Counter)
    ways: Counter[str] = field(default_factory=Counter)
    cases: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Tally:
        """As an earlier process left it; empty where there was none."""
        saved = read_json(path) if path.is_file() else {}
        counters = {name: Counter(saved.pop(name, {})) for name in ("stages", "ways", "cases")}
        return cls(**saved, **counters)

    def report(self) -> str:
        """For the terminal."""
        lines = [
            f"{self.kills} kills in {self.runs} runs: {_counts(self.ways)}; {self.inside_saves} inside a save",
            f"killed while: {_counts(self.stages)}",
            f"killed by case: {_counts(self.cases)}",
            f"{self.resumes} restarts resumed from the newest complete checkpoint",
        ]
        if not self.faults:
            lines.append("every run ended like an uninterrupted one, bit for bit; no complete checkpoint was lost")
        return "\n".join([*lines, *(f"FAULT: {line}" for line in self.faults)])


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.most_common())


@dataclass(frozen=True)
class Whole:
    """An uninterrupted run: what it left, and what is needed to draw moments of it."""

    outcome: dict[str, Any]
    cpu_seconds: float
    training_seconds: float
    files: int


class Soak:
    """Runs of each case in turn, until there have been enough kills.

    Args:
        home: Folder with the data of ``write_data`` and, after the first run, ``tally.json``. With the same folder,
            seed and cases a soak continues after its last finished run.
        seed: Of the moments. Each run draws from its own generator, so that a continued soak draws the same.
        cases: Names in CASES.
        say: Receives a line per run.
    """

    def __init__(self, home: Path, seed: int, cases: Sequence[str], say: Callable[[str], None]) -> None:
        self.home = home
        self.seed = seed
        self.say = say
        self.recipes = {
            name: recipe(home, task, method, **{**LONGER, **more}) for name, (task, method, more) in CASES.items()
        }
        self.tally = Tally.read(home / "tally.json")
        self.whole = {name: self._uninterrupted(name) for name in cases}

    def run(self, kills: int) -> Tally:
        """Kill this often; the run that is under way then is allowed to finish."""
        names = list(self.whole)
        while self.tally.kills < kills and not self.tally.faults:
            self._one_run(names[self.tally.runs % len(names)], kills)
            write_json(self.home / "tally.json", vars(self.tally))
        return self.tally

    def _uninterrupted(self, name: str) -> Whole:
        """Made anew by every process: comparing with it also shows whether the code is the same as before."""
        folder, log = self.home / f"{name}-whole", self.home / f"{name}-whole.log"
        shutil.rmtree(folder, ignore_errors=True)
        log.unlink(missing_ok=True)
        began = time.monotonic()
        seconds, codes = self._session(name, folder, log, NEVER)
        assert codes and set(codes) == {0}, f"{name}: the uninterrupted run ended with {codes}, see {log}"
        notes = [line.removeprefix("note ").split() for line in _lines(log) if line.startswith("note ")]
        files = max(int(words[1]) for words in notes if words[0] == "files")
        training = max(float(words[2]) for words in notes if words[:2] == ["training", "took"])
        self.say(
            f"{name}: {seconds:.1f} s of CPU, {training:.1f} s of training, {time.monotonic() - began:.0f} s in all"
        )
        return Whole(outcome(folder), seconds, training, files)

    def _one_run(self, name: str, kills: int) -> None:
        tally, whole = self.tally, self.whole[name]
        folder = self.home / f"run-{tally.runs + 1}"
        shutil.rmtree(folder, ignore_errors=True)
        draw = random.Random(f"{self.seed} {tally.runs}")
        for train_session in range(1000):
            before, log = finished(folder), self.home / f"{folder.name}-{train_session}.log"
            log.unlink(missing_ok=True)
            kill = NEVER if tally.kills >= kills else self._kill(draw, whole)
            _, codes = self._session(name, folder, log, kill)
            self._check(name, folder, log, before, codes)
            if tally.faults:
                return
            if -9 not in codes:
                break
            tally.kills += 1
            tally.ways[kill.way] += 1
            tally.cases[name] += 1
            tally.inside_saves += any((folder / "checkpoints").glob(".[sr]*"))
            tally.stages[last_stage(log)] += 1
        tally.runs += 1
        left = outcome(folder)
        if found := differences(left, whole.outcome):
            files = sorted(set(left["files"]) ^ set(whole.outcome["files"]))
            tally.faults.append(
                f"{name} in {folder} after {train_session} kills differs: {', '.join(found[:8])} {files}"
            )
        else:
            shutil.rmtree(folder)
            for log in self.home.glob(f"{folder.name}-*.log"):
                log.unlink()
        self.say(f"{tally.kills} kills, {tally.runs} runs: {name} came through after {train_session}")

    @staticmethod
    def _kill(draw: random.Random, whole: Whole) -> Kill:
        way = draw.choice(WAYS)
        if way == "training":
            return Kill(way, training_seconds=draw.uniform(0, whole.training_seconds), rank=draw.randint(0, 1))
        if way == "clock":
            return Kill(way, cpu_seconds=draw.uniform(0, whole.cpu_seconds))
        return Kill(way, file=draw.randint(1, whole.files))

    def _session(self, name: str, folder: Path, log: Path, kill: Kill) -> tuple[float, list[int | None]]:
        """Start it, kill it when its CPU time is used up; seconds and exit codes."""
        if name in TWO_PROCESSES:
            processes = start_ranks(2, in_rank, live, self.recipes[name], folder, log, kill)
        else:
            processes = [start(live, self.recipes[name], folder, log, replace(kill, rank=0))]
        seconds = 0.0
        while any(process.is_alive() for process in processes):
            # Of two processes, the one that writes is watched; a launcher ends the other when one has died.
            seconds = max(seconds, cpu_seconds(processes[0].pid))
            if seconds > kill.cpu_seconds or any(process.exitcode == -9 for process in processes):
                for process in processes:
                    process.kill()
            time.sleep(POLL)
        codes = joined(processes)
        for process in processes:
            # The Prover of a killed process outlives it: its pipes stay open in other forks.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return seconds, codes

    def _check(self, name: str, folder: Path, log: Path, before: list[int], codes: list[int | None]) -> None:
        """What must hold after every session, however it ended."""
        tally, keep = self.tally, self.recipes[name].train.save_total_limit
        # A process whose companion was killed ends with an error of its own.
        if not (set(codes) <= {0, -9} or (-9 in codes and len(codes) > 1)):
            tally.faults.append(f"{name}: a session in {folder} ended with {codes}, see {log}")
        for path in listed(folder / "checkpoints"):
            if reason := fault(path):
                tally.faults.append(f"{name}: {path} is not whole: {reason}")
        after = finished(folder)
        lost = set(before) - set(after) if keep > len(before) else {max(before)} if max(before) > max(after) else set()
        if lost:
            tally.faults.append(f"{name}: {folder} has lost the checkpoints {sorted(lost)}")
        resumed = [line for line in _lines(log) if line.startswith("note resuming from checkpoint-")]
        if resumed and before:
            tally.resumes += 1
            if not resumed[0].endswith(f"checkpoint-{max(before)}"):
                tally.faults.append(f"{name}: {folder} had {max(before)}, but: {resumed[0]}")


def finished(folder: Path) -> list[int]:
    """Steps of the checkpoints that are complete: in their place, or sealed and about to be put there."""
    places = [*listed(folder / "checkpoints"), *listed(folder / "checkpoints" / ".staging")]
    return sorted({step_of(path) for path in places if fault(path) is None})


def last_stage(log: Path) -> str:
    """What was under way at the end."""
    stages = [line.removeprefix("stage ") for line in _lines(log) if line.startswith("stage ")]
    return stages[-1] if stages else "opening the run"


def _lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8").splitlines() if log.is_file() else []


def cpu_seconds(pid: int | None) -> float:
    """CPU time of a process; 0 where it has just ended."""
    try:
        used = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(used.user + used.system)


def main() -> None:
    """Soak, and print the tally."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=CASES)
    parser.add_argument("--folder", type=Path, help="keep everything here; the same command continues")
    options = parser.parse_args()
    # In memory where there is such a folder: a disk that waits for every sync teaches nothing about kills.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        os.environ |= {"HFTUNE_CACHE": f"{folder}/cache", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        tally = Soak(prepared(folder), options.seed, options.cases, partial(print, flush=True)).run(options.kills)
    print(tally.report())
    sys.exit(1 if tally.faults else 0)


def prepared(folder: Path) -> Path:
    """A folder with the data of the soak, which is written once."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder if (folder / "labeled").is_dir() else write_data(folder)


if __name__ == "__main__":
    main()
