"""Labeled rows whose lengths are spread as in real data, made by the generator of the embedded reviews.

Used by the cases that train or use a classifier. The words are those of the reviews; only how many there are differs.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np

from hftune.data.generators.reviews import write_review

Draw = Callable[[np.random.Generator, int], np.ndarray]
"""Generator and number → so many lengths in words."""


def sentences(draw: np.random.Generator, count: int) -> np.ndarray:
    """SST-5's lengths: its training rows have 24.8 BERT tokens on average, with a deviation of 11.1, and 4 to 66."""
    return np.clip(draw.gamma((24.8 / 11.1) ** 2, 11.1**2 / 24.8, count).round(), 4, 66) - 2


def reviews(draw: np.random.Generator, count: int) -> np.ndarray:
    """Lengths of whole reviews: half are under 100 words, one in six over 210, a few very long."""
    return np.clip(draw.lognormal(np.log(100), 0.75, count).round(), 8, 1000)


def longest(draw: np.random.Generator, count: int) -> np.ndarray:
    """More words than any model here reads: rows that are cut to one length."""
    return np.full(count, 600)


LENGTHS: dict[str, Draw] = {"sentences": sentences, "reviews": reviews, "longest": longest}


def texts(kind: str, count: int, seed: int = 0) -> list[tuple[int, str]]:
    """Stars and text of so many rows of one kind."""
    lengths = LENGTHS[kind](np.random.default_rng(seed), count).astype(int).tolist()
    written = Random(seed)
    return [_of_length(written, length) for length in lengths]


def write_rows(folder: Path, kind: str, *, train: int, validation: int = 64) -> Path:
    """A folder that ``--data`` takes, with train and validation."""
    folder.mkdir(parents=True)
    made = texts(kind, train + validation)
    for split, rows in (("train", made[:train]), ("validation", made[train:])):
        with (folder / f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("label", "text"), *rows])
    return folder


def _of_length(written: Random, length: int) -> tuple[int, str]:
    stars, text = write_review(written)
    words = text.replace("\\n", " ").split()
    while len(words) < length:
        words += write_review(written)[1].replace("\\n", " ").split()
    return stars, " ".join(words[:length])
