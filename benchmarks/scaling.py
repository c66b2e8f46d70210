"""How training scales: time and memory with the number of examples, and the time of a step with the length.

python benchmarks/scaling.py                          # 1,000 … 64,000 examples, 16 … 512 tokens; docs/scaling.png
python benchmarks/scaling.py --most 4000 --longest 64 --plot scaling.png

CPU time is measured, so a busy machine gives the same numbers. Each number of examples runs in a new process with an
empty cache: reading, training the tokenizer, tokenizing and one epoch. A second process then prepares the same examples
from the cache: what it holds in addition to the libraries is the memory of the examples themselves.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

FEWEST, SHORTEST = 1000, 16
BATCH_SIZE, STEPS, WARM_UP = 32, 4, 1
Measure = Callable[[Path, int], dict[str, float]]
DEFAULT_PLOT = Path(__file__).resolve().parent.parent / "docs" / "scaling.png"


def sentences(folder: Path, count: int) -> None:
    """Examples as long as SST-5's."""
    from workloads import write_dataset

    write_dataset(folder, "sentences", train=count)


def longest(folder: Path, length: int) -> None:
    """Examples for a few steps, longer than any length that is measured."""
    from workloads import write_dataset

    write_dataset(folder, "longest", train=BATCH_SIZE * (STEPS + WARM_UP), validation=8)


def with_examples(folder: Path, count: int) -> dict[str, float]:
    """Prepare the examples with an empty cache and train one epoch."""
    os.environ["HFTUNE_CACHE"] = str(folder / "cache")
    from harness import QUICK, timed
    from workloads import assemble, classify_recipe, fit

    from hftune.progress import ProgressReporter, quiet_libraries
    from hftune.runs.directory import RunDir
    from hftune.training.memory import peak_memory

    quiet_libraries()
    recipe = classify_recipe(folder / "rows", QUICK, 128)
    made: list[Any] = []
    prepared = timed(count, lambda: made.append(assemble(recipe, RunDir.create(folder / "run"), ProgressReporter())))
    trained = timed(count, lambda: fit(made[0].trainer))
    return {"examples": count, "prepare": prepared.cpu, "train": trained.cpu, "gigabytes": peak_memory() / 2**30}


def again(folder: Path, count: int) -> dict[str, float]:
    """Prepare the same examples from the cache; the memory that is held then."""
    os.environ["HFTUNE_CACHE"] = str(folder / "cache")
    from harness import QUICK
    from workloads import Prepared, classify_recipe

    from hftune.progress import quiet_libraries
    from hftune.training.memory import peak_memory

    quiet_libraries()
    prepared = Prepared(classify_recipe(folder / "rows", QUICK, 128))
    assert len(prepared.inputs.train) == count, "every example is there"
    return {"again": peak_memory() / 2**30}


def with_length(folder: Path, length: int) -> dict[str, float]:
    """Seconds of a training step on examples of equal length, with TinyBERT's shape."""
    os.environ["HFTUNE_CACHE"] = str(folder / "cache")
    from harness import FULL
    from workloads import classify_recipe, through_hftune

    from hftune.progress import quiet_libraries

    quiet_libraries()
    settings = {"train.max_steps": STEPS + WARM_UP, "train.per_device_train_batch_size": BATCH_SIZE}
    timing = through_hftune(classify_recipe(folder / "rows", FULL, length, **settings), folder, skipped=WARM_UP)
    return {"length": length, "step": timing.cpu / STEPS}


def measured(
    of: Sequence[Measure], rows: Callable[[Path, int], object], sizes: Sequence[int]
) -> list[dict[str, float]]:
    """Measure each size in new processes, so that none has the memory or the warm caches of another.

    Args:
        of: Functions that measure one size with the examples in a folder.
        rows: Writes the examples, in a process that is not measured.
        sizes: The sizes.
    """
    found = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            _in_new_process(rows, folder / "rows", size)
            found.append({key: value for one in of for key, value in _in_new_process(one, folder, size).items()})
        print("  ".join(f"{name} {value:,.3g}" for name, value in found[-1].items()), flush=True)
    return found


def _in_new_process(work: Callable[[Path, int], Any], folder: Path, size: int) -> Any:
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as process:
        return process.submit(work, folder, size).result()


def plot(by_count: Sequence[dict[str, float]], by_length: Sequence[dict[str, float]], path: Path) -> None:
    """Three panels with logarithmic axes, except for memory."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from hftune.lab.experiment import slope

    counts, lengths = [one["examples"] for one in by_count], [one["length"] for one in by_length]
    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(14, 4.2), layout="constrained")
    for name, words in (("prepare", "read, train the tokenizer, tokenize"), ("train", "one epoch")):
        seconds = [one[name] for one in by_count]
        left.plot(counts, seconds, marker="o", label=f"{words} (slope {slope(counts[-4:], seconds[-4:]):.2f})")
    middle.plot(counts, [one["gigabytes"] for one in by_count], marker="o")
    middle.set_ylim(bottom=0)
    steps = [one["step"] for one in by_length]
    right.plot(lengths, steps, marker="o", label=f"slope {slope(lengths[-3:], steps[-3:]):.2f} at the end")
    for axes, title, across in (
        (left, "seconds of CPU time", "training examples"),
        (middle, "peak memory, GB", "training examples"),
        (right, f"seconds of a step of {BATCH_SIZE} examples", "tokens per example"),
    ):
        axes.set_xscale("log", base=2)
        axes.set_title(title)
        axes.set_xlabel(across)
        axes.grid(alpha=0.3)
    for axes, ticks in ((left, counts), (middle, counts), (right, lengths)):
        axes.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
    for axes in (left, right):
        axes.set_yscale("log")
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=64_000, help="most examples; their number doubles from 1,000")
    parser.add_argument("--longest", type=int, default=512, help="most tokens per example; lengths double from 16")
    parser.add_argument("--plot", type=Path, default=DEFAULT_PLOT)
    asked = parser.parse_args()
    counts = [FEWEST * 2**step for step in range(20) if FEWEST * 2**step <= asked.most]
    lengths = [SHORTEST * 2**step for step in range(20) if SHORTEST * 2**step <= asked.longest]
    if min(len(counts), len(lengths)) < 2:
        parser.error(f"two sizes are needed for a slope: --most {2 * FEWEST}, --longest {2 * SHORTEST} at least")
    plot(measured([with_examples, again], sentences, counts), measured([with_length], longest, lengths), asked.plot)
    print(f"plot: {asked.plot}")


if __name__ == "__main__":
    main()
