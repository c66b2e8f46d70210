"""One process or several: the main process, barriers, shared values, and the launcher's arguments.

A launcher (``accelerate launch``, torchrun, mpirun) sets the environment; without one there is one process, and every
question is answered without touching torch.distributed. accelerate starts one process where several were requested on a
CPU, and exits with 0; it also sets one thread per process by default. So its commands are read here, by its own parser.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import get_int_from_env

from hftune.errors import HftuneError
from hftune.portability import usable_cores

logger = logging.getLogger(__name__)

Value = TypeVar("Value")

# Where torchrun and the MPIs give the number of processes; accelerate looks at the same variables.
SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE")
HALF_AN_HOUR = 1800.0
LONG_WAIT = timedelta(days=7)
"""Timeout of a process that waits for another one to score or encode. If that one dies, its connection closes, which is
noticed at once."""
# Training's own group ends a run in which one process hangs, so its timeout is short (ddp_timeout, half an hour). But
# processes also wait while the main one alone tokenizes, scores or verifies, which may take hours. They do that over a
# group of their own. It is gloo on GPUs too: what is exchanged are Python objects, and an NCCL barrier would occupy the
# GPU that the main process is scoring on. A list, because it is made once and in place.
_GROUP: list[dist.ProcessGroup] = []

THREADS = "OMP_NUM_THREADS"
ON_CPU = (
    "on a CPU: accelerate launch --multi_gpu --num_processes {processes} -m hftune … (it runs on CPUs where there is "
    "no GPU), or torchrun --nproc_per_node {processes} -m hftune …"
)
"""How to really start several processes; ``--cpu`` and MULTI_CPU start one."""


# ---- processes ----


def launch_summary(launched: Mapping[str, Any]) -> str:
    """One line for the user about ``HftuneTrainer.launched``."""
    count, on_gpu = launched["processes"], launched["device"] != "cpu"
    where = f" on {launched['machines']} machines" if launched["machines"] > 1 else ""
    processes = f"{count} processes{where}" if count > 1 else "1 process"
    line = f"Training on {launched['device'] if on_gpu else 'CPU'}, {processes}, "
    line += f"effective batch size {launched['effective_batch_size']:,}"
    if launched["max_tokens_per_batch"] is not None:
        line += f" at most, {launched['max_tokens_per_batch']:,} tokens per batch"
    if launched["sharding"]:
        line += f", weights sharded with {launched['sharding']}"
    idle = torch.accelerator.device_count() if on_gpu else 0
    if count == 1 and idle > 1:
        line += f"; for all {idle} GPUs: accelerate launch --multi_gpu --num_processes {idle} -m hftune …"
    return line


def world_size() -> int:
    """Number of processes that train together."""
    return int(get_int_from_env(SIZES, 1))


def local_world_size() -> int:
    """Number of those on this machine."""
    return int(get_int_from_env(LOCAL_SIZES, world_size()))


def on_cpu(use_cpu: bool) -> bool:
    """Whether training runs on the CPU: set by train.use_cpu or the launcher, or because there is no accelerator."""
    launched_so = os.environ.get("ACCELERATE_USE_CPU", "false").lower() in ("1", "true", "yes")
    return use_cpu or launched_so or not torch.accelerator.is_available()


def join(use_cpu: bool, timeout: float = HALF_AN_HOUR) -> None:
    """Connect to the other processes of the launch, if there are any; refuses a launch that started too few."""
    refuse_fewer_than_requested(world_size())
    # With it, only the main process would read the weights, and the fingerprint of frozen weights would differ.
    if os.environ.get("FSDP_CPU_RAM_EFFICIENT_LOADING", "false").lower() == "true":
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
        logger.info("fsdp_cpu_ram_efficient_loading is turned off: each process checks the weights that it has read")
    if world_size() == 1 or _GROUP:
        return
    state = PartialState(cpu=on_cpu(use_cpu), timeout=timedelta(seconds=timeout))
    if state.num_processes != world_size():
        raise HftuneError(
            f"the launcher started {world_size()} processes, but this one is connected to {state.num_processes}",
            hint="start them with accelerate launch or torchrun, which give each process its number (LOCAL_RANK)",
        )
    _GROUP.append(dist.new_group(backend="gloo", timeout=LONG_WAIT))


def is_main_process() -> bool:
    """Whether this process writes the run directory."""
    return world_size() == 1 or dist.get_rank(_group()) == 0


def wait_for_everyone() -> None:
    """Wait for all processes."""
    if world_size() > 1:
        dist.barrier(group=_group())


@contextmanager
def main_first() -> Iterator[None]:
    """The main process runs the block first; the others then find its result in a cache."""
    if not is_main_process():
        wait_for_everyone()
    yield
    if is_main_process():
        wait_for_everyone()


def agreed(value: Value) -> Value:
    """The value of the main process, in every process."""
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
    if not _GROUP:
        join(use_cpu=False)
    return _GROUP[0]


def contact_is_lost(error: BaseException) -> bool:
    """Whether an error is the consequence of another process that ended."""
    if world_size() == 1 or not isinstance(error, RuntimeError):
        return False
    # gloo and NCCL have no common class for this; the texts are those of gloo's TCP pairs.
    gone = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
    return isinstance(error, dist.DistBackendError) or any(text in str(error) for text in gone)


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
    """Divide the cores among the processes of this machine; a number of threads that the user chose is kept."""
    if not threads_are_chosen():
        torch.set_num_threads(threads_for(local_world_size()))


def threads_for(jobs: int) -> int:
    """CPU threads per job if ``jobs`` of them share this machine: one per physical core that this process may use."""
    usable = usable_cores()
    return max(1, min(psutil.cpu_count(logical=False) or usable, usable) // jobs)


# ---- the launcher ----


def read_launch(arguments: Sequence[str]) -> argparse.Namespace:
    """What ``accelerate launch`` makes of the arguments that follow it and of its config file, by its own names.

    The script that is to be launched can be left out.
    """
    from accelerate.commands import launch

    parser, output = launch.launch_command_parser(), io.StringIO()
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            try:
                parsed = parser.parse_args(list(arguments))
            except SystemExit:  # the script is missing, or something is wrong, which is then refused here
                parsed = parser.parse_args([*arguments, "-m", "hftune"])
            return launch._validate_launch_command(parsed)[0]  # type: ignore[no-any-return]
    except SystemExit as error:
        raise _refused(output.getvalue().strip().splitlines()[-1:] or ["no message"]) from error
    except (ValueError, OSError, AttributeError, TypeError, KeyError) as error:
        raise _refused(str(error).splitlines()) from error


def _refused(lines: Sequence[str]) -> HftuneError:
    return HftuneError(
        f"accelerate launch refuses this: {' '.join(lines).strip()}",
        hint="see accelerate launch --help, and docs/scale.md for commands and config files that work",
    )


def launched_by() -> psutil.Process | None:
    """The launcher, if the parent process is one."""
    try:
        parent = psutil.Process().parent()
        return parent if parent is not None and _launch_arguments(parent.cmdline()) is not None else None
    except psutil.Error:
        return None


def refuse_fewer_than_requested(started: int) -> None:
    """Refuse to train alone where several processes were requested and accelerate silently started one."""
    # `accelerate launch --cpu --num_processes 2` exits with 0 after one process has trained. It has then set the
    # address of the first process, as it does for more than one, but no number (RANK) for this one.
    alone = started == 1 and "RANK" not in os.environ and "ACCELERATE_USE_CPU" in os.environ
    if not alone or "MASTER_ADDR" not in os.environ:
        return
    requested = "several"
    launcher = launched_by()
    if launcher is not None:
        with contextlib.suppress(HftuneError, psutil.Error):
            processes = int(read_launch(_launch_arguments(launcher.cmdline()) or ()).num_processes or 1)
            if processes == 1:
                return  # the address was in the environment before
            requested = str(processes)
    raise HftuneError(
        f"{requested} processes were requested, but accelerate has started one: --cpu, distributed_type MULTI_CPU and "
        "distributed_type NO start no more",
        hint=ON_CPU.format(processes=requested if launcher else "N") + "; with GPUs: --multi_gpu",
    )


def threads_are_chosen() -> bool:
    """Whether the user chose a number of threads; a launcher that sets 1 on its own does not count."""
    if THREADS not in os.environ:
        return False
    launcher = launched_by()
    if launcher is None:
        return True
    try:
        flags = ("--num_cpu_threads", "--num-cpu-threads")
        return any(word.startswith(flags) for word in launcher.cmdline()) or THREADS in launcher.environ()
    except psutil.Error:
        return True


def _launch_arguments(command: Sequence[str]) -> list[str] | None:
    """What follows ``accelerate launch`` or torchrun in a command; None for any other program."""
    for place, word in enumerate(command[:4]):
        name = Path(word).name
        if name == "accelerate" and list(command[place + 1 : place + 2]) == ["launch"]:
            return list(command[place + 2 :])
        if name in ("accelerate-launch", "torchrun") or word in ("accelerate.commands.launch", "torch.distributed.run"):
            return list(command[place + 1 :])
    return None
