"""What surrounds training: starting the command line, and preparing data a second time.

python benchmarks/overhead.py                   # both cases
python benchmarks/overhead.py startup --quick   # one case, once: checks that it runs

startup       `hftune --help` compared with an interpreter that does nothing, each in a new process.
preparation   100,000 texts from the file to token ids, from the cache and for the first time with an empty cache.
              Reading, checks, the tokenizer (trained, or found in the cache) and tokenization count; imports do not.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from harness import Case, Contestant, Goal, Scale, Timing, main, temporary_cache, timed
from workloads import Prepared, classify_recipe, write_dataset

NOTHING, FIRST = "python -c pass", "the first time"


def starts(folder: Path, scale: Scale) -> Mapping[str, Contestant]:
    count = scale.of(5, least=1)

    def start(*arguments: str) -> Timing:
        def run() -> None:
            for _ in range(count):
                subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)

        return timed(count, run)

    return {"hftune --help": lambda: start("-m", "hftune", "--help"), NOTHING: lambda: start("-c", "pass")}


def preparations(folder: Path, scale: Scale) -> Mapping[str, Contestant]:
    examples = scale.of(100_000, least=2_500)
    recipe = classify_recipe(write_dataset(folder / "data", "sentences", train=examples), scale, 128)
    cache = folder / "cache"

    def prepare() -> Timing:
        with temporary_cache(cache):
            return timed(examples, lambda: Prepared(recipe))

    def first() -> Timing:
        shutil.rmtree(cache, ignore_errors=True)
        return prepare()

    def second() -> Timing:
        if not cache.exists():
            first()
        return prepare()

    return {"hftune, the second time": second, FIRST: first}


CASES = (
    Case("startup", "hftune --help", "starts", (Goal(NOTHING, most=25),), starts, repeats=5, warm_ups=1),
    Case(
        "preparation",
        "data preparation of 100,000 texts, the second time",
        "texts",
        (Goal(FIRST, least=20),),
        preparations,
    ),
)

if __name__ == "__main__":
    main(CASES)
