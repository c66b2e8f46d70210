"""Peak memory of training for 50 steps on a generated text that is larger than that.

python benchmarks/streaming.py                       a file of 500 MB; must stay below 1.5 GB
python benchmarks/streaming.py --size 20 --steps 5   a small one, to try
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BOUND_GB = 1.5
SYLLABLES = [first + second for first in "bdfgklmnprst" for second in ("a", "e", "i", "o", "u", "an", "el", "or")]


def write_text(path: Path, megabytes: float) -> None:
    """Lines of invented words with Zipf frequencies."""
    draw = random.Random(0)
    words = ["".join(draw.choices(SYLLABLES, k=draw.randint(1, 4))) for _ in range(30_000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    left = megabytes * 1e6
    with path.open("w", encoding="utf-8") as file:
        while left > 0:
            chosen = iter(draw.choices(words, weights, k=200_000))
            for _ in range(10_000):
                line = " ".join(word for word, _ in zip(chosen, range(draw.randint(5, 35)), strict=False)) + ".\n"
                left -= file.write(line)
                if left <= 0:
                    break


def main() -> None:
    """Generate the text, train, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=float, default=500, metavar="MB")
    parser.add_argument("--steps", type=int, default=50, metavar="N")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        write_text(place / "train.txt", asked.size)
        write_text(place / "valid.txt", 0.2)
        size = (place / "train.txt").stat().st_size
        settings = {
            "model.vocab_size": 8000,
            "train.max_steps": asked.steps,
            "train.eval_steps": asked.steps,
            "train.per_device_train_batch_size": 16,
            "train.per_device_eval_batch_size": 8,
        }
        command = [sys.executable, "-m", "hftune", "pretrain", "--objective", "clm", "--corpus", str(place)]
        command += ["--model", "scratch:mingpt", "--output", str(place / "run"), "--json"]
        command += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        began = time.perf_counter()
        environment = {**os.environ, "HFTUNE_CACHE": str(place / "cache")}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        seconds = time.perf_counter() - began
        metrics = json.loads(done.stdout)
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit / 2**30
    found = {
        "text_mb": round(size / 1e6, 1),
        "steps": metrics["speed"]["steps"],
        "peak_gb": round(peak, 3),
        "bound_gb": BOUND_GB,
        "seconds": round(seconds, 1),
        "training_seconds": metrics["speed"]["train_seconds"],
    }
    if asked.json:
        print(json.dumps(found))
    else:
        print(f"{found['text_mb']} MB of text, {found['steps']} steps: peak memory {peak:.2f} GB, {seconds:.0f} s")
    if peak > BOUND_GB:
        sys.exit(f"more than {BOUND_GB} GB")


if __name__ == "__main__":
    main()
