"""How training grows: time and memory against the number of examples, and the time of an update against length.

python benchmarks/scaling.py                          # 1,000 … 64,000 examples, 16 … 512 tokens; docs/scaling.png
python benchmarks/scaling.py --most 4000 --longest 64 --plot scaling.png

Processor time is measured, so a busy machine gives the same numbers. Each number of examples is a process of its own,
with an empty cache: reading, learning the vocabulary, tokenizing and one epoch. A second process then prepares the same
rows again from what was kept: what it holds beside the libraries is what the examples themselves take.
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
ROWS, UPDATES, WARM = 32, 4, 1
Measure = Callable[[Path, int], dict[str, float]]
DEFAULT_PLOT = Path(__file__).resolve().parent.parent / "docs" / "scaling.png"


def sentences(folder: Path, count: int) -> None:
    """So many rows, as long as SST-5's."""
    from hftune.bench.rows import write_rows

    write_rows(folder, "sentences", train=count)


def longest(folder: Path, length: int) -> None:
    """Rows for a few updates, longer than any that is measured."""
    from hftune.bench.rows import write_rows

    write_rows(folder, "longest", train=ROWS * (UPDATES + WARM), validation=8)


def with_examples(folder: Path, count: int) -> dict[str, float]:
    """Prepare so many rows, train one epoch, and tell what it took."""
    os.environ["HFTUNE_CACHE"] = str(folder / "cache")
    from hftune.bench.case import QUICK, timed
    from hftune.bench.classify import classify_recipe
    from hftune.pipeline import assemble
    from hftune.quiet import quiet_libraries
    from hftune.runs.directory import RunDir
    from hftune.training import fit
    from hftune.training.memory import peak_memory
    from hftune.training.progress import Silent

    quiet_libraries()
    recipe = classify_recipe(folder / "rows", QUICK, 128)
    made: list[Any] = []
    prepared = timed(count, lambda: made.append(assemble(recipe, RunDir.create(folder / "run"), Silent())))
    trained = timed(count, lambda: fit(made[0].trainer))
    return {"examples": count, "prepare": prepared.cpu, "train": trained.cpu, "gigabytes": peak_memory() / 2**30}


def again(folder: Path, count: int) -> dict[str, float]:
    """Prepare the rows that ``with_examples`` has prepared, and tell what is held then."""
    os.environ["HFTUNE_CACHE"] = str(folder / "cache")
    from hftune.bench.case import QUICK
    from hftune.bench.classify import classify_recipe
    from hftune.quiet import quiet_libraries
    from hftune.tasks import TASKS
    from hftune.training.memory import peak_memory

    quiet_libraries()
    task = TASKS["classify"](classify_recipe(folder / "rows", QUICK, 128))
    data = task.load_data()
    held = task.prepare(data, task.load_tokenizer(data))
    assert len(held.train) == count, "all are there"
    return {"again": peak_memory() / 2**30}


def with_length(folder: Path, length: int) -> dict[str, float]:
    """Updates on rows that are all so long, with TinyBERT's shape; seconds of one."""
    os.environ["HFTUNE_CACHE"] = str(folder / "cache")
    from hftune.bench.case import FULL
    from hftune.bench.classify import classify_recipe
    from hftune.bench.training import through_hftune
    from hftune.quiet import quiet_libraries

    quiet_libraries()
    steps = {"train.max_steps": UPDATES + WARM, "train.per_device_train_batch_size": ROWS}
    turn = through_hftune(classify_recipe(folder / "rows", FULL, length, **steps), folder, skipped=WARM)
    return {"length": length, "update": turn.cpu / UPDATES}


def measured(
    of: Sequence[Measure], rows: Callable[[Path, int], object], sizes: Sequence[int]
) -> list[dict[str, float]]:
    """Each size in processes of its own, so that none has the memory or the warm caches of another.

    Args:
        of: Measure one size on the rows in a folder, one after the other.
        rows: Writes these; elsewhere, so that making them is not in what is measured.
        sizes: Which.
    """
    found = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            _elsewhere(rows, folder / "rows", size)
            found.append({key: value for one in of for key, value in _elsewhere(one, folder, size).items()})
        print("  ".join(f"{name} {value:,.3g}" for name, value in found[-1].items()), flush=True)
    return found


def _elsewhere(work: Callable[[Path, int], Any], folder: Path, size: int) -> Any:
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as process:
        return process.submit(work, folder, size).result()


def plot(by_count: Sequence[dict[str, float]], by_length: Sequence[dict[str, float]], path: Path) -> None:
    """Three panels, each on logarithmic axes but for memory."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from hftune.models.mingpt.cost import slope

    counts, lengths = [one["examples"] for one in by_count], [one["length"] for one in by_length]
    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(14, 4.2), layout="constrained")
    for name, words in (("prepare", "read, learn the vocabulary, tokenize"), ("train", "one epoch")):
        seconds = [one[name] for one in by_count]
        left.plot(counts, seconds, marker="o", label=f"{words} (slope {slope(counts[-4:], seconds[-4:]):.2f})")
    middle.plot(counts, [one["gigabytes"] for one in by_count], marker="o")
    middle.set_ylim(bottom=0)
    updates = [one["update"] for one in by_length]
    right.plot(lengths, updates, marker="o", label=f"slope {slope(lengths[-3:], updates[-3:]):.2f} at the end")
    for axes, title, across in (
        (left, "seconds of processor time", "training examples"),
        (middle, "most memory held, GB", "training examples"),
        (right, f"seconds of an update of {ROWS} rows", "tokens of each row"),
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
    parser.add_argument("--longest", type=int, default=512, help="longest rows in tokens; lengths double from 16")
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
