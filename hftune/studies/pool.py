"""Several workers side by side on this machine, the CPU's threads shared out among them. Used by the sweep."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

Order = Mapping[str, Any]
Tell = Callable[[Order, Mapping[str, Any]], None]


class Worker:
    """One worker process, started when it is first needed and again when it has died."""

    def __init__(self, threads: int) -> None:
        """threads: how many of the CPU's it may use."""
        self._threads = threads
        self._process: subprocess.Popen[str] | None = None

    def carry_out(self, order: Order, tell: Tell) -> dict[str, Any]:
        """Give one order and wait for its outcome, passing the news on."""
        process = self._alive()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            message = json.loads(line)
            if "outcome" in message:
                outcome: dict[str, Any] = message["outcome"]
                return outcome
            tell(order, message)
        code = process.wait()
        self._process = None
        reason = f"its process was ended by signal {-code}" if code < 0 else f"its process ended with code {code}"
        return {"state": "failed", "reason": reason, "hint": "memory may have run out", "path": order["path"]}

    def close(self) -> None:
        """Let the process end when it is done."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()
            self._process = None

    def _alive(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hftune.studies.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": str(self._threads)},
            )
        return self._process


@contextmanager
def workers(jobs: int) -> Iterator[list[Worker]]:
    """As many workers as jobs, closed at the end."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    crew = [Worker(max(1, cores // jobs)) for _ in range(jobs)]
    try:
        yield crew
    finally:
        for worker in crew:
            worker.close()


def carry_out_all(
    orders: Sequence[Order], jobs: int, tell: Tell, done: Callable[[Order, dict[str, Any]], None]
) -> bool:
    """Carry out all orders; done is called with each outcome. Returns False when somebody asked to stop."""
    waiting: queue.SimpleQueue[Order] = queue.SimpleQueue()
    for order in orders:
        waiting.put(order)
    stopped = threading.Event()
    lock = threading.Lock()

    def work(worker: Worker) -> None:
        while not stopped.is_set():
            try:
                order = waiting.get_nowait()
            except queue.Empty:
                return
            outcome = worker.carry_out(order, tell)
            if outcome["state"] == "stopped":
                stopped.set()
            with lock:
                done(order, outcome)

    with workers(min(jobs, max(1, len(orders)))) as crew:
        threads = [threading.Thread(target=work, args=(worker,)) for worker in crew]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            # The terminal sends Ctrl-C to the workers too: they save, answer and stop.
            stopped.set()
            for thread in threads:
                thread.join()
    return not stopped.is_set()
