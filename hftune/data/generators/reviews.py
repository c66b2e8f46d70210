"""Generated reviews of shops, restaurants and the like with one to five stars, in the format of yelp_small.

A review is one statement worth -2 to 2, then up to two neutral sentences; the stars are three plus its value, with
some noise. The value depends on the order of its words (what was expected and what came, what others claimed and
whether they were wrong, what follows "but"), so counting words is not enough. The words are in reviews.toml.
"""

import csv
from itertools import islice
from pathlib import Path
from random import Random

from . import distinct, words_of, write_lines

words = words_of(__file__)

SIZES = {"train": 4000, "dev": 500, "test": 500}
UNLABELED = 5000
NOISE = 0.08
"""The share of reviews whose stars are one off, as real reviewers' stars are."""

BREAKS = (" ", " ", " ", " ", " ", "\\n", "\\n\\n")


class _Reviewer:
    """Writes the statements of one review about one business."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.things = words.BUSINESSES[rng.choice(sorted(words.BUSINESSES))]
        self.unused = [(kind, noun) for kind in ("food", "person", "place", "work") for noun in self.things[kind]]
        rng.shuffle(self.unused)

    def _words(self, kind: str, worth: int) -> list[str]:
        """Two different words with that value for that kind of thing."""
        levels = words.LEVELS
        return self.rng.sample(sorted({*levels["any"][str(worth)], *levels[kind][str(worth)]}), 2)

    def _fill(self, frames: list[str], worth: int, other: int) -> str:
        """Fill a frame with a thing, words with the given value and one with another."""
        kind, noun = self.unused.pop()
        first, second = self._words(kind, worth)
        return self.rng.choice(frames).format(
            n=noun.rstrip("*"),
            was="were" if noun.endswith("*") else "was",
            x=first,
            x2=second,
            o=self._words(kind, other)[0],
            very=self.rng.choice(words.VERY),
        )

    def part(self, worth: int) -> str:
        """One side of a statement: one or two words with that value, or a negated opposite."""
        draw = self.rng.random()
        if draw < 0.1:
            return str(self.rng.choice(words.VERDICTS[str(worth)]))
        if draw < 0.35 and abs(worth) == 1:
            frames = words.DENIED if self.rng.random() < 0.6 else words.FEARED if worth > 0 else words.WISHED
            return self._fill(frames, worth, -worth * self.rng.choice((1, 2)))
        return self._fill(words.PAIRS if self.rng.random() < 0.8 else words.PLAIN, worth, worth)

    def statement(self, worth: int) -> str:
        """Two opposed parts, of which one has the given value (the words and their order show which); or hearsay."""
        who = self.rng.choice(words.WHO)
        if self.rng.random() < 0.06:
            truth = self.rng.random() < 0.5
            part = self._fill(words.PLAIN, worth if truth else -worth, worth)
            hearsay: str = self.rng.choice(words.HEARSAY)
            return hearsay.format(a=part, who=who, truth=self.rng.choice(words.TRUTHS[str(truth).lower()]))
        other = self.rng.choice([level for level in range(-2, 3) if level != worth])
        frame: str = self.rng.choice(words.SECOND if self.rng.random() < 0.8 else words.FIRST)
        return frame.format(a=self.part(other), b=self.part(worth), who=who)

    def fact(self, frame: str) -> str:
        """A sentence that has nothing to do with the quality."""
        return frame.format(
            num=self.rng.randint(2, 60),
            hour=self.rng.randint(6, 12),
            who=self.rng.choice(words.WHO),
            who2=self.rng.choice(words.WHO),
            landmark=self.rng.choice(words.LANDMARKS),
            holiday=self.rng.choice(words.HOLIDAYS),
            color=self.rng.choice(words.COLORS),
            color2=self.rng.choice(words.COLORS),
            business=self.rng.choice(self.things["names"]),
            day=self.rng.choice(words.DAYS),
        )


def _sentence(text: str) -> str:
    end = "" if text[-1] in ".:!?" else "."
    return text[0].upper() + text[1:] + end


def write_review(rng: Random) -> tuple[int, str]:
    """One review: its stars, with noise, and its text with line breaks spelled as backslash and n."""
    target = rng.randint(-2, 2)
    reviewer = _Reviewer(rng)
    parts = [reviewer.statement(target)]
    asides = [*rng.sample(words.FACTS, 2), *rng.sample(words.VISITS, 1)]
    rng.shuffle(asides)
    parts += [reviewer.fact(frame) for frame in asides[: rng.choice((0, 1, 1, 2))]]
    text = _sentence(parts[0])
    for part in parts[1:]:
        text += rng.choice(BREAKS) + _sentence(part)
    stars = target + 3
    if rng.random() < NOISE:
        stars += rng.choice((-1, 1)) if 1 < stars < 5 else (1 if stars == 1 else -1)
    return stars, text


def write_files(folder: Path, seed: int) -> None:
    """Write train.csv, dev.csv, test.csv and unlabeled.txt; no text occurs twice."""
    rng = Random(seed)
    rows = distinct(lambda: write_review(rng), key=lambda row: row[1])
    for split, size in SIZES.items():
        with (folder / f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(islice(rows, size))
    write_lines(folder / "unlabeled.txt", (text for _, text in islice(rows, UNLABELED)))
