"""One process or several: who writes, who waits, and what all must agree on. The only place that asks.

A launcher (``accelerate launch``, torchrun, mpirun) sets the environment; with none there is one process, and every
question is answered without touching torch.distributed. ``hftune.pipeline`` joins the launch before anything else.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, TypeVar

import psutil
import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import get_int_from_env
from transformers import set_seed

from hftune.errors import HftuneError
from hftune.portability import usable_cores
from hftune.training.launcher import refuse_fewer_than_asked, threads_are_chosen

logger = logging.getLogger(__name__)

Value = TypeVar("Value")

SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE")
"""Where torchrun and the MPIs tell how many processes there are; accelerate looks at the same ones."""
PATIENCE = timedelta(days=7)
"""How long one process waits for another that scores or encodes. One that has died is noticed at once: its connection
closes."""
_WAITING: list[dist.ProcessGroup] = []
"""The connection over which processes wait and agree: apart from training's, which must not be as patient."""


@dataclass(frozen=True)
class Launched:
    """How a run was launched: environment.json keeps it."""

    processes: int
    machines: int
    device: str
    """cpu, cuda …"""
    sharding: str | None
    """What shares the weights out; None where each process has all of them."""
    update_rows: int
    """Training rows of one update, over all processes and accumulated passes; at most, under a token budget."""
    batch_tokens: int | None = None
    """The budget of a batch, where ``train.max_tokens_per_batch`` sets one."""

    def as_dict(self) -> dict[str, Any]:
        """As it stands in environment.json."""
        return asdict(self)

    def in_words(self) -> str:
        """One line for whoever watches."""
        together = f"{self.processes} processes train together" if self.processes > 1 else "1 process trains"
        where = f" on {self.machines} machines" if self.machines > 1 else ""
        how = f", weights shared out by {self.sharding}" if self.sharding else ""
        line = f"{together} ({self.device}){where}{how}: {self.update_rows:,} rows an update"
        if self.batch_tokens is not None:
            line += f" at most, {self.batch_tokens:,} tokens a batch"
        idle = torch.accelerator.device_count() if self.device != "cpu" else 0
        if self.processes == 1 and idle > 1:
            line += f"; for all {idle} GPUs: accelerate launch --multi_gpu --num_processes {idle} -m hftune …"
        return line


def world_size() -> int:
    """Processes that train together."""
    return int(get_int_from_env(SIZES, 1))


def local_world_size() -> int:
    """Those of them that share this machine."""
    return int(get_int_from_env(LOCAL_SIZES, world_size()))


HALF_AN_HOUR = 1800.0


def on_cpu(use_cpu: bool) -> bool:
    """Whether training runs on the processor: the recipe's ``train.use_cpu``, the launcher or the machine say so."""
    told = os.environ.get("ACCELERATE_USE_CPU", "false").lower() in ("1", "true", "yes")
    return use_cpu or told or not torch.accelerator.is_available()


def join(use_cpu: bool, timeout: float = HALF_AN_HOUR) -> None:
    """Meet the other processes of the launch; there may be none.

    Raises:
        HftuneError: Other than what the launcher was asked for has started.
    """
    refuse_fewer_than_asked(world_size())
    if os.environ.get("FSDP_CPU_RAM_EFFICIENT_LOADING", "false").lower() == "true":
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
        logger.info("fsdp_cpu_ram_efficient_loading is turned off: each process checks the weights that it has read")
    if world_size() == 1 or _WAITING:
        return
    expected = world_size()
    state = PartialState(cpu=on_cpu(use_cpu), timeout=timedelta(seconds=timeout))
    if state.num_processes != expected:
        raise HftuneError(
            f"the launcher says that {expected} processes train together, but this one finds {state.num_processes}",
            hint="start them with accelerate launch or torchrun, which tell each process its number (LOCAL_RANK)",
        )
    _WAITING.append(dist.new_group(backend="gloo", timeout=PATIENCE))


def is_main_process() -> bool:
    """Whether this process writes the run directory."""
    return world_size() == 1 or dist.get_rank(_group()) == 0


def wait_for_everyone() -> None:
    """Return when all processes have come this far."""
    if world_size() > 1:
        dist.barrier(group=_group())


@contextmanager
def main_first() -> Iterator[None]:
    """The main process carries the block out first; the others then find what it has left in a cache."""
    if not is_main_process():
        wait_for_everyone()
    yield
    if is_main_process():
        wait_for_everyone()


def agreed(value: Value) -> Value:
    """The main process's value, in every process."""
    if world_size() == 1:
        return value
    values = [value]
    dist.broadcast_object_list(values, src=0, group=_group())
    return values[0]


def smallest(value: int) -> int:
    """The smallest of all processes' values, in every process."""
    if world_size() == 1:
        return value
    values = [value] * world_size()
    dist.all_gather_object(values, value, group=_group())
    return min(values)


def _group() -> dist.ProcessGroup:
    if not _WAITING:
        join(use_cpu=False)
    return _WAITING[0]


def contact_is_lost(error: BaseException) -> bool:
    """Whether an error comes of another process that has gone."""
    if world_size() == 1 or not isinstance(error, RuntimeError):
        return False
    gone = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
    return isinstance(error, dist.DistBackendError) or any(words in str(error) for words in gone)


def a_process_died() -> bool:
    """Whether the launcher has fewer processes left on this machine than it started: it then ends the others."""
    if local_world_size() == 1:
        return False
    try:
        me = psutil.Process()
        launcher = me.parent()
        started = [] if launcher is None else launcher.children()
        running = [one for one in started if one.status() != psutil.STATUS_ZOMBIE and one.cmdline() == me.cmdline()]
        return len(running) < local_world_size()
    except psutil.Error:
        return False


def share_cores() -> None:
    """Share the cores out among the processes of this machine; a number of threads that the user chose stays."""
    if not threads_are_chosen():
        torch.set_num_threads(threads_for(local_world_size()))


def threads_for(jobs: int) -> int:
    """CPU threads of each of so many jobs that share this machine: one a real core that this process may use."""
    usable = usable_cores()
    return max(1, min(psutil.cpu_count(logical=False) or usable, usable) // jobs)


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch on every device, before data order, fresh weights or dropout are drawn."""
    set_seed(seed)
