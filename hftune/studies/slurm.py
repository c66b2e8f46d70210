"""A study on a cluster: each run a Slurm job, through submitit. Hired by ``hftune sweep --launcher slurm``.

The study itself stays where it was started and only waits; runs and their news lie in its folder, which all machines of
the cluster must see.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hftune.config import document
from hftune.errors import HftuneError
from hftune.portability import is_link
from hftune.runs.directory import RunDir
from hftune.studies.folder import StudyDir
from hftune.studies.news import NewRows
from hftune.studies.pool import STOPPED, Hand, Order, Tell

# What people call it on the command line, and submitit.
PARAMETERS = {
    "partition": "slurm_partition",
    "time": "timeout_min",
    "gpus": "gpus_per_node",
    "mem": "mem_gb",
    "cpus": "cpus_per_task",
    "account": "slurm_account",
    "qos": "slurm_qos",
}
LOOK_EVERY = 5.0


class Job:
    """What a job runs. Where Slurm's time is up before the run is, submitit takes a checkpoint and queues it again."""

    def __call__(self, order: Order) -> dict[str, Any]:
        """Train the run, or go on with it."""
        from hftune.studies.worker import run_order

        return run_order(order)

    def checkpoint(self, order: Order) -> Any:
        """The same order again: a run goes on from its own checkpoints."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, order)


class SlurmHand:
    """One place in the queue: submits a job, waits for it, and passes on what it writes."""

    def __init__(self, executor: Any, guard: threading.Lock, look_every: float) -> None:
        """guard: submitit's executor is shared by all hands."""
        self._executor = executor
        self._guard = guard
        self._look_every = look_every
        self._stopped = False

    def carry_out(self, order: Order, tell: Tell) -> dict[str, Any]:
        """Submit one job and wait for its end."""
        if self._stopped:
            return STOPPED
        with self._guard:
            job = self._executor.submit(Job(), dict(order))
            _remove_links(job.paths.folder)
        rows = NewRows(RunDir(Path(order["path"])).history)
        ended: dict[str, Any] | None = None
        while not job.done():
            time.sleep(self._look_every)
            tell(order, {"stage": f"job {job.job_id} {job.state.lower()}"})
            if ended is None and (ended := self._look(order, tell, rows)):
                job.cancel()
        if ended:
            return ended
        try:
            outcome: dict[str, Any] = job.result()
        except Exception as error:  # submitit's own errors, or those of unpickling
            return {
                "state": "failed",
                "reason": f"job {job.job_id} gave no result (state {job.state}): {str(error).splitlines()[-1]}",
                "hint": f"see {job.paths.stderr}; a job that ran out of memory needs a larger --slurm mem=",
            }
        return outcome

    def _look(self, order: Order, tell: Tell, rows: NewRows) -> dict[str, Any] | None:
        """Pass on what the run has written; the outcome where it shall end here."""
        if self._stopped:
            return STOPPED
        new = rows.read()
        if new:
            tell(order, {"done": new[-1]["step"], "total": 0, "facts": {}})
        if order.get("watch"):
            for evaluation in rows.evaluations(new, order["watch"]):
                if not tell(order, {"evaluation": evaluation}):
                    return {"state": "pruned"}
        return None

    def stop(self) -> None:
        """Cancel the job at the next look."""
        self._stopped = True

    def close(self) -> None:
        """Nothing is left behind but submitit's logs."""


def _remove_links(folder: Path) -> None:
    """Remove the links to job scripts that submitit leaves for reference: a study with links in it is refused."""
    for script in folder.glob(".submission_file_*.sh"):
        if is_link(script):
            script.unlink()


def slurm_crew(
    parameters: Sequence[str], cluster: str = "slurm", look_every: float = LOOK_EVERY
) -> Callable[[StudyDir, int], list[Hand]]:
    """What hires hands that submit jobs.

    Args:
        parameters: ``key=value`` as ``--slurm`` takes them: partition, time (minutes), gpus, mem (GB), cpus …; any
            other key goes to sbatch by its own name.
        cluster: submitit's name of the cluster; ``local`` runs the jobs here.
        look_every: Seconds between two looks at a job.

    Raises:
        HftuneError: submitit is not installed, or a parameter is not right.
    """
    given = _parsed(parameters)
    try:
        import submitit
    except ImportError as error:
        raise HftuneError("--launcher slurm needs submitit", hint="pip install 'hftune[slurm]'") from error

    def hire(study: StudyDir, jobs: int) -> list[Hand]:
        try:
            executor = submitit.AutoExecutor(folder=study.path.resolve() / "logs" / "jobs", cluster=cluster)
            executor.update_parameters(name=f"hftune-{study.path.name}", **given)
        except RuntimeError as error:
            raise HftuneError(
                f"there is no Slurm here: {error}", hint="start the study on a cluster, or leave --launcher out"
            ) from error
        except (AssertionError, NameError, ValueError) as error:
            raise HftuneError(
                f"--slurm: {str(error).splitlines()[0]}", hint=f"use {', '.join(PARAMETERS)}, or names of sbatch"
            ) from error
        guard = threading.Lock()
        return [SlurmHand(executor, guard, look_every) for _ in range(jobs)]

    return hire


def _parsed(parameters: Sequence[str]) -> Mapping[str, Any]:
    """The parameters as submitit names them; what it has no name for goes to sbatch."""
    named: dict[str, Any] = {}
    further: dict[str, Any] = {}
    for parameter in parameters:
        key, _, written = (part.strip() for part in parameter.partition("="))
        if not key or not written:
            raise HftuneError(f"--slurm expects KEY=VALUE, got {parameter!r}", hint="write --slurm partition=gpu")
        try:
            value = document.parse(written, "--slurm")[0]
        except document.DocumentError as error:
            raise HftuneError(f"--slurm {parameter}: {error.problem.message}", hint="quote the value") from error
        if key in PARAMETERS:
            named[PARAMETERS[key]] = value
        else:
            further[key.replace("-", "_")] = value
    return {**named, **({"slurm_additional_parameters": further} if further else {})}
