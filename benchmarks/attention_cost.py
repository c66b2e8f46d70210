"""Time of attention against length, for every variant: slope 2 for exact softmax, 1 for the linear ones.

python benchmarks/attention_cost.py                      # 128 … 8192, a table, and docs/attention_cost.png
python benchmarks/attention_cost.py --longest 2048 --plot cost.png --json cost.json

CPU time is measured, so a busy machine gives the same numbers. Slopes are fitted from length 1024 on: below that,
the fixed cost of a call hides the growth.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from hftune.lab.complexity import AttentionCost, measure_costs
from hftune.lab.experiment import slope
from hftune.models.mingpt import ATTENTION

__all__ = ["fitted_slopes", "main", "measure_costs", "plot"]

FIT_FROM = 1024
DEFAULT_PLOT = Path(__file__).resolve().parent.parent / "docs" / "attention_cost.png"


def fitted_slopes(costs: Sequence[AttentionCost], start: int = FIT_FROM) -> dict[str, float]:
    """The exponent of time against length for each variant, over lengths from ``start`` on."""
    slopes = {}
    for variant in dict.fromkeys(cost.variant for cost in costs):
        long = [cost for cost in costs if cost.variant == variant and cost.length >= start]
        slopes[variant] = slope([cost.length for cost in long], [cost.seconds for cost in long])
    return slopes


def plot(costs: Sequence[AttentionCost], slopes: dict[str, float], path: Path) -> None:
    """Time and memory against length on logarithmic axes, one line per variant."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    for variant in dict.fromkeys(cost.variant for cost in costs):
        mine = [cost for cost in costs if cost.variant == variant]
        lengths = [cost.length for cost in mine]
        label = f"{variant} (slope {slopes[variant]:.2f})"
        left.plot(lengths, [cost.seconds * 1000 for cost in mine], marker="o", label=label)
        right.plot(lengths, [cost.saved_bytes / 2**20 for cost in mine], marker="o", label=variant)
    for axes, title in ((left, "forward + backward, ms of CPU time"), (right, "kept for backward, MiB")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("length, tokens")
        axes.set_title(title)
        axes.grid(alpha=0.3)
    left.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--longest", type=int, default=8192, help="longest sequence; lengths double from 128")
    parser.add_argument("--variants", nargs="+", default=list(ATTENTION), choices=list(ATTENTION))
    parser.add_argument("--plot", type=Path, default=DEFAULT_PLOT)
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    arguments = parser.parse_args()
    lengths = [128 * 2**step for step in range(20) if 128 * 2**step <= arguments.longest]
    if len([length for length in lengths if length >= FIT_FROM]) < 2:
        parser.error(f"--longest must be at least {2 * FIT_FROM} for a slope to be fitted")

    def show(cost: AttentionCost) -> None:
        memory = cost.saved_bytes / 2**20
        print(f"{cost.variant:12} {cost.length:6} {cost.seconds * 1000:10.2f} ms {memory:9.1f} MiB", flush=True)

    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, one layer, 2 heads of 32, batch 1")
    costs = measure_costs(lengths, arguments.variants, seconds_each=1.0, progress=show)
    slopes = fitted_slopes(costs)
    for variant, value in slopes.items():
        print(f"slope {variant:12} {value:.2f}")
    plot(costs, slopes, arguments.plot)
    print(f"plot: {arguments.plot}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"slopes": slopes, "costs": [asdict(cost) for cost in costs]}, indent=1))


if __name__ == "__main__":
    main()
