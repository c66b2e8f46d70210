"""Who carries out the runs of a study: workers side by side on this machine, and how work is shared out among them.

``hftune.studies.sweep`` hires a crew; ``hftune.studies.slurm`` has another kind of hand for clusters.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from hftune.child_process import death, fresh_process
from hftune.errors import Interrupted
from hftune.portability import HANGUP, detached, interrupt

Order = Mapping[str, Any]
Tell = Callable[[Order, Mapping[str, Any]], bool]
"""Hears the news of an order; its answer to an evaluation says whether the run shall go on."""

STOPPED: dict[str, Any] = {"state": "stopped", "reason": "the study was stopped"}


class Hand(Protocol):
    """Carries out one order at a time."""

    def carry_out(self, order: Order, tell: Tell) -> dict[str, Any]:
        """Do it, and return the outcome: state done, failed, pruned or stopped. Never raises for what a run does."""

    def stop(self) -> None:
        """End what is under way, with everything saved; take no more orders."""

    def close(self) -> None:
        """There are no more orders."""


class Worker:
    """One worker process, started when it is first needed and again when it has died."""

    def __init__(self, log: Path, environment: Mapping[str, str]) -> None:
        """log: where the process's own words go; environment: what is set for it beside ours."""
        self._log = log
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False

    def carry_out(self, order: Order, tell: Tell) -> dict[str, Any]:
        """Give one order and wait for its outcome, passing the news on."""
        if self._stopped:
            return STOPPED
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            self._send(process, order)
            for line in process.stdout:
                message = json.loads(line)
                if "outcome" in message:
                    outcome: dict[str, Any] = message["outcome"]
                    return outcome
                go_on = tell(order, message)
                if "evaluation" in message:
                    self._send(process, {"go_on": go_on})
        except BrokenPipeError:
            pass  # it has ended; what follows says how
        code = process.wait()
        self._process = None
        if self._stopped:
            return STOPPED
        killed, log = death(code), f"see {self._log}"
        if killed is not None:
            return {"state": "failed", "reason": f"its worker process {killed}", "hint": f"{killed.hint}; {log}"}
        return {"state": "failed", "reason": f"its worker process ended with code {code}", "hint": log}

    def stop(self) -> None:
        """Ctrl-C for the worker: a run under way saves and stops, a second one ends it at once."""
        self._stopped = True
        process = self._process
        if process is not None and process.poll() is None:
            interrupt(process)

    def close(self) -> None:
        """Let the process end when it is done."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None and process.stdout is not None:
            process.stdin.close()
            process.wait()
            process.stdout.close()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            command, environment = fresh_process("hftune.studies.worker")
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    encoding="utf-8",
                    env={**environment, **self._environment},
                    **detached(),  # Ctrl-C reaches the study alone, which passes it on
                )
        return self._process

    @staticmethod
    def _send(process: subprocess.Popen[str], message: Mapping[str, Any]) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()


def local_crew(logs: Path, jobs: int) -> list[Hand]:
    """Workers on this machine: the CPU's threads are shared out among them, and its GPUs where there are several."""
    from hftune.training.launch import threads_for  # brings torch along, which --help must not

    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(threads_for(jobs))}
    gpus = _gpus() if jobs > 1 else []
    return [
        Worker(
            logs / f"worker-{number + 1}.log",
            {**threads, **({"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if len(gpus) > 1 else {})},
        )
        for number in range(jobs)
    ]


def _gpus() -> list[str]:
    """The GPUs of this machine as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


Piece = Callable[[Hand], None]
"""A piece of work for one hand: one order, or the orders of one trial after each other."""


def share_out(pieces: Iterator[Piece], crew: Sequence[Hand]) -> None:
    """Let each hand take the next piece when it is done with the last.

    Raises:
        Interrupted: Somebody asked to stop; every run under way has been saved.
    """
    guard = threading.Lock()
    received: list[int] = []
    broken: list[BaseException] = []

    def work(hand: Hand) -> None:
        try:
            while not received and not broken:
                with guard:
                    piece = next(pieces, None)
                if piece is None:
                    return
                piece(hand)
        except BaseException as error:  # raised again in the main thread
            broken.append(error)

    def stop(number: int) -> None:
        received.append(number)
        for hand in crew:
            hand.stop()

    threads = [threading.Thread(target=work, args=(hand,), daemon=True) for hand in crew]
    with _signals(stop):
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # in slices, so that signals come through
    if broken:
        raise broken[0]
    if received:
        raise Interrupted(
            "the study was stopped; complete runs are kept, the one under way was saved",
            hint="start the same command again to go on",
            signal_number=received[0],
        )


@contextmanager
def _signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP (unless ignored, as nohup does) ask for an end.

    Outside the main thread Python allows no handlers, so nothing is taken.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def received(number: int, frame: FrameType | None) -> None:
        stop(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    numbers += [number for number in HANGUP if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, received) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
