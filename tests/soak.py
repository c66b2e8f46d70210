"""A soak: kill -9 at random moments, many times, over all tasks. Each resume must succeed and lose nothing.

python tests/soak.py                        200 kills
python tests/soak.py --kills 20 --seed 7    a short one

Each run is the whole pipeline, from the data to the report. It is killed again and again, half of the time after a
random share of its CPU time, half of the time at a random file that it opens, renames or removes, until it gets
through; then all that it left must equal what an uninterrupted run leaves, bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from crash_case import differences, in_rank, recipe, remains, write_data
from forks import joined, start, start_ranks

from hftune import verify
from hftune.config.recipe import Recipe
from hftune.files import read_json
from hftune.pipeline import train
from hftune.training.checkpoints import fault, listed, step_of
from hftune.training.progress import Silent

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "classify": ("classify", "full", {"train.eval_steps": 2}),
    "classify, two kept": ("classify", "lora", {"train.eval_steps": 1, "train.keep_checkpoints": 2}),
    "classify, features kept": ("classify", "head", {"train.eval_steps": 2}),
    "joint": ("joint", "full", {"train.batch_size": 4, "train.accumulation": 2, "train.eval_steps": 3}),
    "mlm": ("mlm", "full", {"train.workers": 1}),
    "span": ("span", "muon", {"train.eval_steps": 2, "train.keep_checkpoints": 1}),
    "clm": ("clm", "full", {"train.eval_steps": 3}),
    "answer": ("answer", "full", {"train.eval_steps": 2}),
    "two processes": ("classify", "full", {"train.batch_size": 4, "train.eval_steps": 2, "train.device": "cpu"}),
}
POLL = 0.01
EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir")
SPEED = "speed"
NOT_COMPARED = ("README.md",)
"""Of model/: the card tells how long training took."""


class Log(Silent):
    """Keeps stages and notes on disk, where they outlive the process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def stage(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(f"stage {text}\n")

    def note(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(f"note {text}\n")

    warn = note


class Prover:
    """The standing process of ``hftune.verify``, as a fork of this one, which has not computed anything yet."""

    def __init__(self) -> None:
        asked, answered = os.pipe(), os.pipe()
        if os.fork() == 0:
            os.close(asked[1])
            os.close(answered[0])
            sys.stdin, sys.stdout = os.fdopen(asked[0]), os.fdopen(answered[1], "w")
            verify.stand()
            os._exit(0)
        os.close(asked[0])
        os.close(answered[1])
        self.stdin, self.stdout = os.fdopen(asked[1], "w"), os.fdopen(answered[0])


def live(wanted: Recipe, folder: Path, log: Path, last_file: int = 0) -> None:
    """One sitting, in a process of its own: the whole pipeline, killed from inside at the n-th file where asked."""
    seen = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in EVENTS and str(arguments[0]).startswith(str(folder)):
            seen += 1
            if seen == last_file:
                os.kill(os.getpid(), 9)

    verify._STANDING.append(Prover())  # type: ignore[arg-type]
    sys.addaudithook(watch)
    train(wanted, folder, resume=True, listener=Log(log))
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
    """What came of the soak."""

    kills: int = 0
    inside_saves: int = 0
    runs: int = 0
    resumes: int = 0
    stages: Counter[str] = field(default_factory=Counter)
    ways: Counter[str] = field(default_factory=Counter)
    cases: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def told(self) -> str:
        """For the terminal."""
        lines = [
            f"{self.kills} kills in {self.runs} runs: {_counts(self.ways)}; {self.inside_saves} inside a save",
            f"killed while: {_counts(self.stages)}",
            f"killed by case: {_counts(self.cases)}",
            f"{self.resumes} sittings went on from the newest complete checkpoint, as they should",
        ]
        if not self.faults:
            lines.append("every run ended as an uninterrupted one, bit for bit; no finished checkpoint was lost")
        return "\n".join([*lines, *(f"FAULT: {line}" for line in self.faults)])


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.most_common())


class Soak:
    """Runs of each case in turn, until there have been enough kills."""

    def __init__(self, home: Path, seed: int, cases: Sequence[str], say: Callable[[str], None]) -> None:
        self.home = home
        self.draw = random.Random(seed)
        self.say = say
        self.tally = Tally()
        self.recipes = {name: recipe(home, task, method, **more) for name, (task, method, more) in CASES.items()}
        self.whole = {name: self._uninterrupted(name) for name in cases}

    def run(self, kills: int) -> Tally:
        """Kill so often; the run that is under way then is let finish."""
        while self.tally.kills < kills and not self.tally.faults:
            for name in self.whole:
                if self.tally.kills < kills and not self.tally.faults:
                    self._one_run(name, kills)
        return self.tally

    def _uninterrupted(self, name: str) -> tuple[dict[str, Any], float, int]:
        """What it leaves, the CPU seconds it takes, and how many files it touches."""
        folder, log = self.home / f"{name}-whole", self.home / f"{name}-whole.log"
        began = time.monotonic()
        seconds, codes = self._sitting(name, folder, log, None, 0)
        assert codes and set(codes) == {0}, f"{name}: the uninterrupted run ended with {codes}, see {log}"
        files = max(int(line.split()[-1]) for line in log.read_text().splitlines() if line.startswith("note files"))
        self.say(f"{name}: {seconds:.1f} s of CPU, {files} files, {time.monotonic() - began:.0f} s")
        return outcome(folder), seconds, files

    def _one_run(self, name: str, kills: int) -> None:
        expected, seconds, files = self.whole[name]
        tally, folder = self.tally, self.home / f"run-{self.tally.runs + 1}"
        for sitting in range(1000):
            before, log = finished(folder), self.home / f"{folder.name}-{sitting}.log"
            way = "never" if tally.kills >= kills else self.draw.choice(("clock", "file"))
            budget = self.draw.uniform(0, seconds) if way == "clock" else None
            last_file = self.draw.randint(1, files) if way == "file" else 0
            _, codes = self._sitting(name, folder, log, budget, last_file)
            self._check(name, folder, log, before, codes)
            if tally.faults:
                return
            if -9 in codes:
                tally.kills += 1
                tally.ways[f"by the {way}"] += 1
                tally.cases[name] += 1
                tally.inside_saves += any((folder / "checkpoints").glob(".[sr]*"))
                tally.stages[last_stage(log)] += 1
            else:
                break
        tally.runs += 1
        left = outcome(folder)
        if found := differences(left, expected):
            files = sorted(set(left["files"]) ^ set(expected["files"]))
            tally.faults.append(f"{name} in {folder} after {sitting} kills differs: {', '.join(found[:8])} {files}")
        self.say(f"{tally.kills} kills, {tally.runs} runs: {name} came through after {sitting}")

    def _sitting(
        self, name: str, folder: Path, log: Path, budget: float | None, last_file: int
    ) -> tuple[float, list[int | None]]:
        """Start it, kill it when its CPU time is used up; seconds and exit codes."""
        asked = (self.recipes[name], folder, log, last_file)
        world = 2 if name == "two processes" else 1
        processes = [start(live, *asked)] if world == 1 else start_ranks(world, in_rank, live, *asked)
        seconds = 0.0
        while any(process.is_alive() for process in processes):
            # Of several, the one that writes is looked at; a launcher ends the others when one has died.
            seconds = max(seconds, cpu_seconds(processes[0].pid))
            if (budget is not None and seconds > budget) or any(process.exitcode == -9 for process in processes):
                for process in processes:
                    process.kill()
            time.sleep(POLL)
        return seconds, joined(processes)

    def _check(self, name: str, folder: Path, log: Path, before: list[int], codes: list[int | None]) -> None:
        """What must hold after every sitting, however it ended."""
        tally, keep = self.tally, self.recipes[name].train.keep_checkpoints
        # A process whose companion was killed ends with an error of its own.
        if not (set(codes) <= {0, -9} or (-9 in codes and len(codes) > 1)):
            tally.faults.append(f"{name}: a sitting in {folder} ended with {codes}, see {log}")
        for path in listed(folder / "checkpoints"):
            if reason := fault(path):
                tally.faults.append(f"{name}: {path} is not whole: {reason}")
        after = finished(folder)
        lost = set(before) - set(after) if keep > len(before) else {max(before)} if max(before) > max(after) else set()
        if lost:
            tally.faults.append(f"{name}: {folder} has lost the checkpoints {sorted(lost)}")
        said = [line for line in _lines(log) if line.startswith("note going on from checkpoint-")]
        if said and before:
            tally.resumes += 1
            if not said[0].endswith(f"checkpoint-{max(before)}"):
                tally.faults.append(f"{name}: {folder} had {max(before)}, but: {said[0]}")


def finished(folder: Path) -> list[int]:
    """Steps of the checkpoints that are complete: in their place, or sealed and about to be put there."""
    places = [*listed(folder / "checkpoints"), *listed(folder / "checkpoints" / ".staging")]
    return sorted({step_of(path) for path in places if fault(path) is None})


def last_stage(log: Path) -> str:
    """What was under way at the end."""
    stages = [line.removeprefix("stage ") for line in _lines(log) if line.startswith("stage ")]
    return stages[-1] if stages else "opening the run"


def _lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.is_file() else []


def cpu_seconds(pid: int | None) -> float:
    """CPU time of a process; 0 where it has just ended."""
    try:
        used = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(used.user + used.system)


def main() -> None:
    """Soak, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=CASES)
    asked = parser.parse_args()
    # In memory where there is such a folder: a disk that waits for every sync teaches nothing about kills.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        os.environ |= {"HFTUNE_CACHE": f"{folder}/cache", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        tally = Soak(write_data(Path(folder)), asked.seed, asked.cases, print).run(asked.kills)
    print(tally.told())
    sys.exit(1 if tally.faults else 0)


if __name__ == "__main__":
    main()
