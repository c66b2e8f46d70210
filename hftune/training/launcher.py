"""What started this process: the command of the launcher above it, and what that command should have started.

accelerate starts one process where it was asked for several on a CPU, and ends with exit code 0 as if nothing were
amiss; it also tells each process to use one thread unless somebody says otherwise. ``hftune.training.launch`` asks here
before a run begins, ``hftune doctor --launch`` before there is a launch at all. Commands are read by accelerate's own
parser, so that both say what accelerate would do.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from hftune.errors import HftuneError

ONE, TORCHRUN, DEEPSPEED, MPIRUN, TPU = "one process", "torchrun", "DeepSpeed", "mpirun", "TPU"
THREADS = "OMP_NUM_THREADS"
ON_CPU = (
    "on a CPU: accelerate launch --multi_gpu --num_processes {asked} -m hftune … (it runs on CPUs where there is no "
    "GPU), or torchrun --nproc_per_node {asked} -m hftune …"
)
"""How to really start several processes; ``--cpu`` and MULTI_CPU start one."""


@dataclass(frozen=True)
class Launch:
    """What a command of ``accelerate launch`` would do, as far as the command and its config file decide it."""

    asked: int
    """Processes in all, on all machines."""
    started: int
    """Those that would really train together."""
    machines: int
    machine: int
    """The number of this one."""
    how: str
    """ONE, TORCHRUN, DEEPSPEED, MPIRUN or TPU."""
    cpu: bool
    """Whether GPUs are left alone."""
    precision: str
    """no, fp16, bf16 or fp8: what a recipe that sets neither bf16 nor fp16 follows."""
    settings: argparse.Namespace
    """Everything that accelerate understood, by its own names."""

    @property
    def here(self) -> int:
        """Processes on each machine."""
        return max(1, self.started // self.machines)


def read_launch(arguments: Sequence[str]) -> Launch:
    """What ``accelerate launch`` would make of these arguments.

    Args:
        arguments: What was typed after ``accelerate launch``; the script may be left out.

    Raises:
        HftuneError: accelerate would refuse them.
    """
    from accelerate.commands import launch

    parser = launch.launch_command_parser()
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            settings = parser.parse_args([*arguments, *(() if _names_script(parser, arguments) else ("-m", "hftune"))])
            settings, _, _ = launch._validate_launch_command(settings)
    except SystemExit as error:
        raise _refused(said.getvalue().strip().splitlines()[-1:] or ["no message"]) from error
    except (ValueError, OSError, AttributeError, TypeError, KeyError) as error:
        raise _refused(str(error).splitlines()) from error
    return _launch(settings)


def _names_script(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> bool:
    """Whether the arguments name what is to be launched, as a command that was copied does."""
    quiet = io.StringIO()
    try:
        with contextlib.redirect_stderr(quiet), contextlib.redirect_stdout(quiet):
            parser.parse_args(list(arguments))
    except SystemExit:
        return False
    return True


def _refused(lines: Sequence[str]) -> HftuneError:
    return HftuneError(
        f"accelerate launch refuses this: {' '.join(lines).strip()}",
        hint="see accelerate launch --help, and docs/scale.md for commands and config files that work",
    )


def _launch(settings: Any) -> Launch:
    """Which launcher accelerate chooses, and how many processes come of it."""
    asked, machines = int(settings.num_processes or 1), int(settings.num_machines or 1)
    spreads = settings.use_fsdp or settings.use_megatron_lm or settings.multi_gpu
    how = ONE
    if not settings.cpu and settings.use_deepspeed:
        how = DEEPSPEED
    elif not settings.cpu and spreads:
        how = TORCHRUN
    elif not settings.cpu and settings.tpu:
        how = TPU
    elif settings.mpirun_hostfile is not None:
        how = MPIRUN
    return Launch(
        asked=asked,
        started=1 if how == ONE else asked,
        machines=machines,
        machine=int(settings.machine_rank or 0),
        how=how,
        cpu=bool(settings.cpu or settings.use_cpu),
        precision=str(settings.mixed_precision or "no").lower(),
        settings=settings,
    )


def launched_by() -> psutil.Process | None:
    """The launcher, where the process above this one is one."""
    try:
        parent = psutil.Process().parent()
        return parent if parent is not None and _words(parent.cmdline()) is not None else None
    except psutil.Error:
        return None


def refuse_fewer_than_asked(started: int) -> None:
    """Refuse to train alone where several processes were asked for.

    Raises:
        HftuneError: accelerate was asked for several and has started one, in silence.
    """
    # For more than one process it gives each the address of the first; one that was started alone has no number.
    alone = started == 1 and "RANK" not in os.environ and "ACCELERATE_USE_CPU" in os.environ
    if not alone or "MASTER_ADDR" not in os.environ:
        return
    asked = "several"
    launcher = launched_by()
    if launcher is not None:
        with contextlib.suppress(HftuneError, psutil.Error):
            known = read_launch(_words(launcher.cmdline()) or ())
            if known.asked == 1:
                return  # the address was in the environment before
            asked = str(known.asked)
    raise HftuneError(
        f"{asked} processes were asked for, but accelerate has started one: --cpu, distributed_type MULTI_CPU and "
        "distributed_type NO start no more",
        hint=ON_CPU.format(asked=asked if launcher else "N") + "; with GPUs: --multi_gpu",
    )


def threads_are_chosen() -> bool:
    """Whether somebody has said how many threads to use; a launcher that fills in 1 of its own does not count."""
    if THREADS not in os.environ:
        return False
    launcher = launched_by()
    if launcher is None:
        return True
    try:
        told = any(word.startswith(("--num_cpu_threads", "--num-cpu-threads")) for word in launcher.cmdline())
        return told or THREADS in launcher.environ()
    except psutil.Error:
        return True


def _words(command: Sequence[str]) -> list[str] | None:
    """What follows ``accelerate launch`` or torchrun in a command; None for any other program."""
    for place, word in enumerate(command[:4]):
        name = Path(word).name
        if name == "accelerate" and list(command[place + 1 : place + 2]) == ["launch"]:
            return list(command[place + 2 :])
        if name in ("accelerate-launch", "torchrun") or word in ("accelerate.commands.launch", "torch.distributed.run"):
            return list(command[place + 1 :])
    return None
