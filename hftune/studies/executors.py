"""Executors run the jobs of a study: their interface, worker processes on this machine, and Slurm jobs.

A job is a mapping of plain values, because it crosses a pipe or is pickled for a cluster: action (train or score),
path, setting, seed, the splits to score, and to train the recipe as YAML text. Its outcome is a mapping with a state:
done, failed, pruned or stopped.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from hftune.child_process import death, module_command
from hftune.config import document
from hftune.errors import HftuneError, Interrupted
from hftune.portability import HANGUP, detached, interrupt, is_link
from hftune.runs.directory import RunDir
from hftune.studies.folder import StudyDir

Job = Mapping[str, Any]
Callback = Callable[[Job, Mapping[str, Any]], bool]
"""Receives the events of a job; its answer to an evaluation decides whether the run continues."""

STOPPED: dict[str, Any] = {"state": "stopped", "reason": "the study was stopped"}


class Executor(Protocol):
    """Runs one job at a time; a study has as many executors as jobs that run at once."""

    def run(self, job: Job, callback: Callback) -> dict[str, Any]:
        """Run a job and return its outcome. Errors of a run are part of the outcome."""

    def stop(self) -> None:
        """Save and end the current job; refuse further ones."""

    def close(self) -> None:
        """Release resources after the last job."""


class StudyCallback:
    """Receives the progress of a study, from several threads but one call at a time; does nothing until overridden."""

    def on_job(self, job: Job) -> None:
        """A job will be run, or is complete already."""

    def on_event(self, job: Job, event: Mapping[str, Any]) -> None:
        """Progress of a job: done, total and facts; a stage; or a warning."""

    def on_end(self, job: Job, outcome: Mapping[str, Any]) -> None:
        """A job has ended: ready (already complete), done, pruned, failed or stopped."""


class LocalExecutor:
    """One worker process, started for its first job and again after it died.

    The process stays for all its jobs: importing torch and transformers takes longer than training a small run. A new
    process per run would also lose the warm caches of torch and of the file system.
    """

    def __init__(self, log: Path, environment: Mapping[str, str]) -> None:
        """Log is the file for the output of the process; environment is added to this process's own."""
        self._log = log
        self.environment = environment
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False

    def run(self, job: Job, callback: Callback) -> dict[str, Any]:
        """Send the job to the worker, pass its events on, and return its outcome."""
        if self._stopped:
            return STOPPED
        process = self._started()
        assert process.stdout is not None
        try:
            self._send(process, job)
            # Ends with the outcome of the job, or with the process: its end of the pipe is closed then.
            for line in process.stdout:
                message = json.loads(line)
                if "outcome" in message:
                    outcome: dict[str, Any] = message["outcome"]
                    return outcome
                continues = callback(job, message)
                # The worker waits for this answer, so that a pruned run stops at the evaluation that decided it.
                if "evaluation" in message:
                    self._send(process, {"continue": continues})
        except BrokenPipeError:
            pass  # it has ended; its exit code explains how
        code = process.wait()
        self._process = None
        if self._stopped:
            return STOPPED
        killed, log = death(code), f"see {self._log}"
        if killed is not None:
            return {"state": "failed", "reason": f"its worker process {killed}", "hint": f"{killed.hint}; {log}"}
        return {"state": "failed", "reason": f"its worker process ended with code {code}", "hint": log}

    def stop(self) -> None:
        """Like Ctrl-C: the current run saves and stops; a second call ends it at once."""
        self._stopped = True
        process = self._process
        if process is not None and process.poll() is None:
            interrupt(process)

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and process.stdin is not None and process.stdout is not None:
            process.stdin.close()
            process.wait()
            process.stdout.close()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            command, environment = module_command("hftune.studies.worker")
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with self._log.open("ab") as log:
                # Only events go to stdout; whatever libraries print is redirected to stderr, and so into the log.
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    encoding="utf-8",
                    env={**environment, **self.environment},
                    **detached(),  # Ctrl-C reaches only the study, which passes it on
                )
        return self._process

    @staticmethod
    def _send(process: subprocess.Popen[str], message: Mapping[str, Any]) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()


def local_executors(study: StudyDir, count: int) -> list[Executor]:
    """Executors on this machine, which share its cores and, if there are several, its GPUs."""
    from hftune.training.launch import threads_for  # imports torch, which --help must not

    # Without a share of its own each worker would start a thread per core, and they would slow each other down.
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(threads_for(count))}
    gpus = _gpus() if count > 1 else []
    return [
        LocalExecutor(
            study.path / "logs" / f"worker-{number + 1}.log",
            {**threads, **({"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if len(gpus) > 1 else {})},
        )
        for number in range(count)
    ]


def _gpus() -> list[str]:
    """The GPUs of this machine as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name.strip()]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


CreateExecutors = Callable[[StudyDir, int], list[Executor]]
"""Creates this many executors for a study."""
Task = Callable[[Executor], object]
"""Work for one executor: one job, or all jobs of a trial."""


def run_tasks(tasks: Iterator[Task], executors: Sequence[Executor]) -> None:
    """Let each executor take the next task when it has finished the last one.

    Raises:
        Interrupted: A signal asked for a stop; every current run has been saved.
    """
    # A thread per executor, because an executor blocks until its job has ended. They share one iterator: a generator
    # can't be advanced from two threads at once, and a search samples its next trial only when an executor is free.
    guard = threading.Lock()
    received: list[int] = []
    errors: list[BaseException] = []

    def work(executor: Executor) -> None:
        try:
            while not received and not errors:
                with guard:
                    task = next(tasks, None)
                if task is None:
                    return
                task(executor)
        except BaseException as error:  # raised again in the main thread; the other threads finish their jobs
            errors.append(error)

    def stop(number: int) -> None:
        received.append(number)
        for executor in executors:
            executor.stop()

    threads = [threading.Thread(target=work, args=(executor,), daemon=True) for executor in executors]
    with _signals(stop):
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # Python runs signal handlers between calls: a join without limit would delay them
    if errors:
        raise errors[0]
    if received:
        raise Interrupted(
            "the study was stopped; complete runs are kept, the current one was saved",
            hint="start the same command again to continue",
            signal_number=received[0],
        )


@contextmanager
def _signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Call ``stop`` on Ctrl-C, SIGTERM and SIGHUP (unless ignored, as under nohup).

    Outside the main thread Python allows no signal handlers, so none are set.
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


class HistoryReader:
    """Reads history.jsonl while it grows; each row comes once."""

    def __init__(self, path: Path) -> None:
        """The file may be missing yet."""
        self._path = path
        self._offset = 0
        self._last = (-1, False)
        self._evaluations = 0

    def read(self) -> list[dict[str, Any]]:
        """The rows that were finished since the last call."""
        size = self._path.stat().st_size if self._path.is_file() else 0
        if size < self._offset:
            self._offset = 0  # a resumed run truncates its history at its checkpoint; rows that were read are skipped
        if size == self._offset:
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            written = file.read()
        whole = written[: written.rfind(b"\n") + 1]
        self._offset += len(whole)
        rows = [json.loads(line) for line in whole.splitlines()]
        new = [row for row in rows if (row["step"], "split" in row) > self._last]
        self._last = max([self._last, *((row["step"], "split" in row) for row in new)])
        return new

    def evaluations(self, rows: list[dict[str, Any]], metric: str) -> list[dict[str, Any]]:
        """The validation scores among rows, numbered from 1 in the order of the run.

        Numbers and not steps, so that settings with other batch sizes can be compared evaluation by evaluation.
        """
        found = []
        for row in rows:
            if row.get("split") == "validation" and row.get(metric) is not None:
                self._evaluations += 1
                found.append({"number": self._evaluations, "score": row[metric]})
        return found


# ---- a study on a cluster: each run is a Slurm job, submitted with submitit ----
#
# The sweep itself runs where it was started and only waits; runs are in the folder of the study, which all machines of
# the cluster must share.

# Names of --slurm and submitit's names.
SLURM_PARAMETERS = {
    "partition": "slurm_partition",
    "time": "timeout_min",
    "gpus": "gpus_per_node",
    "mem": "mem_gb",
    "cpus": "cpus_per_task",
    "account": "slurm_account",
    "qos": "slurm_qos",
}
POLL_SECONDS = 5.0


class ClusterJob:
    """The callable that submitit pickles and runs."""

    def __call__(self, job: Job) -> dict[str, Any]:
        """Run a job of the study."""
        from hftune.pipeline.verify import verification_server
        from hftune.studies.worker import run_job

        with verification_server():
            return run_job(job)

    def checkpoint(self, job: Job) -> Any:
        """The same job again: submitit calls this on the signal before Slurm's time limit, and requeues the result.

        Nothing has to be saved here. The run directory has the checkpoints, and a job always resumes its run, so that
        the second attempt continues at the last one; the study waits for the same job number through both.
        """
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, job)


class SlurmExecutor:
    """Submits one job at a time, waits for it, and passes on the progress of its run."""

    def __init__(self, executor: Any, guard: threading.Lock, poll_seconds: float) -> None:
        """All of them share submitit's executor; the lock ``guard`` serializes its use."""
        self._executor = executor
        self._guard = guard
        self._poll_seconds = poll_seconds
        self._stopped = False

    def run(self, job: Job, callback: Callback) -> dict[str, Any]:
        """Submit one job and wait for its end."""
        if self._stopped:
            return STOPPED
        with self._guard:
            submitted = self._executor.submit(ClusterJob(), dict(job))
            _remove_links(submitted.paths.folder)
        history = HistoryReader(RunDir(Path(job["path"])).history)
        ended: dict[str, Any] | None = None
        while not submitted.done():
            time.sleep(self._poll_seconds)
            callback(job, {"stage": f"job {submitted.job_id} {submitted.state.lower()}"})
            if ended is None and (ended := self._poll(job, callback, history)):
                submitted.cancel()
        if ended:  # the outcome is decided here, whatever a cancelled job returns
            return ended
        try:
            outcome: dict[str, Any] = submitted.result()
        except Exception as error:  # submitit's own errors, or those of unpickling
            reason = str(error).splitlines()[-1]
            return {
                "state": "failed",
                "reason": f"job {submitted.job_id} gave no result (state {submitted.state}): {reason}",
                "hint": f"see {submitted.paths.stderr}; a job that ran out of memory needs a larger --slurm mem=",
            }
        return outcome

    def _poll(self, job: Job, callback: Callback, history: HistoryReader) -> dict[str, Any] | None:
        """Pass on new rows of the history; returns the outcome if the job has to end now."""
        if self._stopped:
            return STOPPED
        new = history.read()
        if new:
            callback(job, {"done": new[-1]["step"], "total": 0, "facts": {}})
        if job.get("watch"):
            for evaluation in history.evaluations(new, job["watch"]):
                if not callback(job, {"evaluation": evaluation}):
                    return {"state": "pruned"}
        return None

    def stop(self) -> None:
        """Cancel the job at the next poll."""
        self._stopped = True

    def close(self) -> None:
        """Remove the links that submitit made; its logs stay."""


def _remove_links(folder: Path) -> None:
    # submitit leaves links to its job scripts, and a study with links in it is refused.
    for script in folder.glob(".submission_file_*.sh"):
        if is_link(script):
            script.unlink()


def slurm_executors(
    parameters: Sequence[str], cluster: str = "slurm", poll_seconds: float = POLL_SECONDS
) -> Callable[[StudyDir, int], list[Executor]]:
    """A function that creates the executors of a study.

    Args:
        parameters: ``key=value`` as ``--slurm`` takes them: partition, time (minutes), gpus, mem (GB), cpus …; any
            other key is passed to sbatch.
        cluster: submitit's name of the cluster; ``local`` runs the jobs here.
        poll_seconds: Time between two checks of a job.

    Raises:
        HftuneError: submitit is not installed, or a parameter is wrong.
    """
    given = _parsed(parameters)
    try:
        import submitit
    except ImportError as error:
        raise HftuneError("--launcher slurm needs submitit", hint="pip install 'hftune[slurm]'") from error

    def create(study: StudyDir, count: int) -> list[Executor]:
        try:
            executor = submitit.AutoExecutor(folder=study.path.resolve() / "logs" / "jobs", cluster=cluster)
            executor.update_parameters(name=f"hftune-{study.path.name}", **given)
        except RuntimeError as error:
            raise HftuneError(
                f"there is no Slurm here: {error}", hint="start the study on a cluster, or leave --launcher out"
            ) from error
        except (AssertionError, NameError, ValueError) as error:
            raise HftuneError(
                f"--slurm: {str(error).splitlines()[0]}", hint=f"use {', '.join(SLURM_PARAMETERS)}, or names of sbatch"
            ) from error
        guard = threading.Lock()  # submitit's executor is not safe to use from several threads
        return [SlurmExecutor(executor, guard, poll_seconds) for _ in range(count)]

    return create


def _parsed(parameters: Sequence[str]) -> Mapping[str, Any]:
    """The parameters by submitit's names; other keys are options of sbatch."""
    named: dict[str, Any] = {}
    further: dict[str, Any] = {}
    for parameter in parameters:
        key, _, written = (part.strip() for part in parameter.partition("="))
        if not key or not written:
            raise HftuneError(f"--slurm expects KEY=VALUE, got {parameter!r}", hint="write --slurm partition=gpu")
        try:
            value = document.parse(written, "--slurm")[0]
        except document.RecipeError as error:
            raise HftuneError(f"--slurm {parameter}: {error.problems[0].message}", hint="quote the value") from error
        if key in SLURM_PARAMETERS:
            named[SLURM_PARAMETERS[key]] = value
        else:
            further[key.replace("-", "_")] = value
    return {**named, **({"slurm_additional_parameters": further} if further else {})}
