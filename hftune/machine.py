"""Find out by trial which dtypes work on this machine, and whether they are faster than fp32.

CPU flags are not evidence: a virtual machine can advertise AMX and stop the first process that uses it with SIGILL. A
format is therefore tried in a child process, where a crash or a hang is a result, and timed against fp32, because a
format that works can still be slower. Results are cached per machine, CPU model and torch version; ``hftune doctor``
repeats the trial.

A further trial (compilation, thread counts) is one function and one line in TRIALS.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from typing import Any, Literal

from hftune.cache import cache_key, locked, new_entry, read_entry
from hftune.child_process import ISA_VARIABLE, Death, death, module_command
from hftune.errors import HftuneError
from hftune.portability import cpu_model

logger = logging.getLogger(__name__)

TIME_LIMIT = 120.0
"""Seconds until a trial counts as hung; it takes 3 to 10, most of them to import torch."""
CLEARLY_FASTER = 1.1
"""Minimum speed relative to fp32 for a format to be used; a smaller gain could be noise."""
ISA_CAPS = ("AVX512_CORE_BF16", "AVX2")
"""Values of ONEDNN_MAX_CPU_ISA to try after a crash, most capable first: both leave AMX out."""
ENVIRONMENT = (ISA_VARIABLE, "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
"""Variables that change which kernels run, and so the result of a trial."""

CRASHES = ("SIGILL", "SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGTRAP", "SIGSYS")
"""Signals caused by the CPU or by native code; SIGKILL is about memory, SIGTERM about a user or a batch system."""

Outcome = Literal["works", "crashed", "hung", "wrong", "failed"]


@dataclass(frozen=True)
class Trial:
    """The result of trying one dtype on this CPU."""

    name: str
    """Name of the format in TRIALS, such as bf16."""
    outcome: Outcome
    speed: float = 0.0
    """Speed relative to fp32, measured in the same process, under ``works_with`` if set; 0 if it does not work."""
    detail: str = ""
    """The signal, or the error of the results."""
    works_with: str | None = None
    """Value of ONEDNN_MAX_CPU_ISA with which it works, if it crashes without."""

    @property
    def works(self) -> bool:
        """Whether the format can be used at all."""
        return self.outcome == "works"

    @property
    def pays(self) -> bool:
        """Whether it works and is clearly faster than fp32."""
        return self.works and self.speed >= CLEARLY_FASTER

    def __str__(self) -> str:
        """One sentence, for doctor and for errors."""
        if self.works:
            return f"{self.name} runs at {self.speed:.2g}× the speed of fp32 on this CPU"
        what = {
            "crashed": f"a trial of {self.name} on this CPU {self.detail}",
            "hung": f"a trial of {self.name} on this CPU did not finish in {TIME_LIMIT:.0f} s",
            "wrong": f"{self.name} gives wrong results on this CPU: {self.detail}",
            "failed": f"{self.name} could not be tried on this CPU: {self.detail}",
        }[self.outcome]
        if self.works_with:
            what += f"; with {ISA_VARIABLE}={self.works_with} it works, at {self.speed:.2g}× the speed of fp32"
        return what


def bf16_pays(device: str) -> bool:
    """Whether bf16 matrix products work and are faster than fp32 on a kind of device: cpu, cuda, mps …"""
    if device == "cpu":
        return cpu_trial("bf16").pays
    if device == "cuda":
        import torch

        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return False


@cache
def cpu_trial(name: str) -> Trial:
    """The result for a format on this CPU; the first time on a machine, it is tried."""
    # The processes of one launch share a single trial. Two trials could time differently on a busy machine, and ranks
    # in different dtypes would no longer train the same model.
    with locked("machine", _key(name)):
        entry = read_entry("machine", _key(name))
        if entry is not None:
            return Trial(**entry.info["trial"])
        found = try_again(name)
        if not found.works:
            logger.warning("%s; hftune uses fp32 where it can choose", found)
        return found


def try_again(name: str) -> Trial:
    """Try a format now, whether or not a result is cached, and store the result."""
    cpu_trial.cache_clear()
    found = try_now(name)
    if found.outcome != "failed":  # out of memory or no new process: true of this moment, not of the machine
        try:
            with new_entry("machine", _key(name)) as new:
                new.info.update(trial=asdict(found), cpu=cpu_model(), torch=metadata.version("torch"))
        except OSError as error:
            logger.debug("the result of the trial can't be cached: %s", error)
    return found


def try_now(name: str) -> Trial:
    """Run the trial in a child process; after a crash, once more under each limit of the instruction set."""
    found = _run(name, {})
    if found.outcome != "crashed" or ISA_VARIABLE in os.environ or platform.machine() not in ("x86_64", "AMD64"):
        return found
    # The result stays "crashed" even if a cap helps, because this process would crash all the same: the user has to set
    # the variable for the whole command, and the error suggests it.
    for cap in ISA_CAPS:
        capped = _run(name, {ISA_VARIABLE: cap})
        if capped.works:
            return Trial(name, "crashed", capped.speed, found.detail, works_with=cap)
    return found


def _run(name: str, variables: Mapping[str, str]) -> Trial:
    command, environment = module_command("hftune.machine")
    try:
        done = subprocess.run(
            [*command, name],
            env={**environment, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=TIME_LIMIT,
        )
    except subprocess.TimeoutExpired:
        return Trial(name, "hung")
    except OSError as error:
        return Trial(name, "failed", detail=str(error))
    killed: Death | None = death(done.returncode)
    if killed is not None:
        return Trial(name, "crashed" if killed.signal in CRASHES else "failed", detail=str(killed))
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
        return Trial(name, answer["outcome"], float(answer["speed"]), answer["detail"])
    except (LookupError, ValueError, TypeError):
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Trial(name, "failed", detail=last[:200])


def _key(name: str) -> str:
    """The key of a result: format, machine, CPU model, system, torch version and the variables of ENVIRONMENT."""
    facts = [name, platform.node(), platform.release(), cpu_model(), os.cpu_count(), metadata.version("torch")]
    # The fields too: a later version of hftune, with other fields, tries again.
    return cache_key(facts, [os.environ.get(variable) for variable in ENVIRONMENT], [*Trial.__dataclass_fields__])


# ---- what runs in the child process ----

LARGEST_ERROR = 0.03
"""Largest accepted error of a bf16 product, relative to its norm; rounding alone gives about 0.004."""
TIMED_SECONDS = 0.6
"""Seconds of timing for each of the two formats; the smallest time counts, so that a busy machine changes little."""


def _bf16_trial() -> dict[str, Any]:
    """Compute products and gradients as training does, compare them with fp32, and time both."""
    import torch
    from torch.nn.functional import linear, scaled_dot_product_attention

    draw = torch.Generator().manual_seed(0)
    # Large enough for oneDNN's AMX kernels, which are the ones that crash on such machines: small products use others.
    sizes = {"x": (512, 512), "weight": (1024, 512), "stack": (4, 256, 512), "heads": (2, 4, 128, 64)}
    drawn = {name: torch.randn(size, generator=draw) for name, size in sizes.items()}

    def work(dtype: torch.dtype) -> list[torch.Tensor]:
        x, weight, stack, heads = (one.to(dtype, copy=True) for one in drawn.values())
        weight.requires_grad_()
        forward = linear(x, weight)
        (gradient,) = torch.autograd.grad(forward.square().mean(), weight)
        gram = torch.bmm(stack, stack.mT)  # Muon's Newton-Schulz step
        attended = scaled_dot_product_attention(heads, heads, heads)
        return [forward.detach(), gradient, torch.baddbmm(gram, gram, gram, alpha=1e-3), attended]

    for got, wanted in zip(work(torch.bfloat16), work(torch.float32), strict=True):
        off = float((got.float() - wanted).norm() / wanted.norm())
        if not off < LARGEST_ERROR:
            return {"outcome": "wrong", "speed": 0.0, "detail": f"a product is off by {off:.2g} of its norm"}
    seconds = {torch.bfloat16: float("inf"), torch.float32: float("inf")}
    began = time.perf_counter()
    while time.perf_counter() - began < 2 * TIMED_SECONDS:
        for dtype in seconds:  # in turns, so that both see the same machine
            start = time.perf_counter()
            work(dtype)
            seconds[dtype] = min(seconds[dtype], time.perf_counter() - start)
    return {"outcome": "works", "speed": seconds[torch.float32] / seconds[torch.bfloat16], "detail": ""}


TRIALS: dict[str, Callable[[], dict[str, Any]]] = {"bf16": _bf16_trial}
"""Name → what the child process runs; the answer is the outcome, the speed relative to fp32, and a detail."""


def main(arguments: list[str]) -> None:
    """Run one trial and print its answer; ``python -m hftune.machine bf16``."""
    if len(arguments) != 1 or arguments[0] not in TRIALS:
        raise HftuneError(f"expected one of {', '.join(TRIALS)}, got {arguments}", hint="see `hftune doctor`")
    sys.stdout.write(json.dumps(TRIALS[arguments[0]]()) + "\n")


def find_compiler() -> str | None:
    """The path of a C++ compiler, which torch.compile needs for a CPU."""
    return next((found for name in ("c++", "g++", "clang++", "cl") if (found := shutil.which(name))), None)


if __name__ == "__main__":
    main(sys.argv[1:])
