"""Generated reviews of shops, restaurants and the like with one to five stars, in the format of yelp_small.

The stars are drawn first, then a mood near them, then one to three sentences that judge one thing each, with values
near the mood. The sentiment of a sentence depends mostly on ordinary English words of different strength, of which most
are rare, and on how they are combined: negated, weakened, contrasted, or true of something else. The words are in
reviews.toml, with valences on a scale from -3 to 3.
"""

import csv
from bisect import bisect
from itertools import accumulate, islice
from pathlib import Path
from random import Random

from . import distinct, words_of, write_lines

words = words_of(__file__)

SIZES = {"train": 4000, "dev": 500, "test": 500}
UNLABELED = 5000
SHARES = (15, 24, 20, 24, 17)
"""How often each number of stars is given, in percent."""
STEP = 1.1
"""What one star is worth in valence."""
MOOD = 0.85
"""Standard deviation of the mood around the stars: two people give different stars for the same visit."""
SPREAD = 0.6
"""Standard deviation of what is judged around the mood: aspects differ."""
WINDOW = 0.5
"""How far the valence of a word can be from what is meant."""
RARE = 1.1
"""Exponent of the frequency of words within their level (Zipf): the lower, the rarer is the average word."""
CONTRAST = 0.1
"""The share of sentences that contrast two things; there are more of them where the mood is mixed."""
REPLACED = 0.04
"""The share of sentences that say what is no longer true or was never."""
LOUD = 0.15
"""The share of exclamation marks for each point of mood; anger has half as many."""
SENTENCES = (1, 2, 2, 2, 3)
"""How many sentences judge."""
ASIDES = (0, 0, 1, 1, 1)
"""How many sentences do not."""
LONGEST = 55
"""Words in the longest review."""

BREAKS = (" ", " ", " ", " ", " ", "\\n", "\\n\\n")
KINDS = ("food", "person", "place", "work")


def _levels(name: str) -> dict[float, list[str]]:
    """The words of a list by their valence."""
    return {float(valence): entries for valence, entries in words.LEXICON[name].items()}


LEXICON = {kind: [_levels("any"), _levels(kind)] for kind in KINDS}
LEXICON |= {name: [_levels(name)] for name in ("any", "feel", "adv", "noun")}
WEIGHTS = [round((rank + 2) ** -RARE, 9) for rank in range(200)]
"""The relative frequency of the words of a level, in their order."""
EVENTS = {float(valence): events for valence, events in words.EVENTS.items()}


def _normal(rng: Random, deviation: float) -> float:
    """A normal number, rounded: the last bits of logarithms and cosines differ between platforms."""
    return round(rng.gauss(0, deviation), 9)


def _article(phrase: str) -> str:
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"


class _Reviewer:
    """Writes the sentences of one review about one business."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.things = words.BUSINESSES[rng.choice(sorted(words.BUSINESSES))]
        self.unused = [(kind, noun) for kind in KINDS for noun in self.things[kind]]
        rng.shuffle(self.unused)
        self.used: set[str] = set()

    def _word(self, name: str, value: float) -> str:
        """A word of about that valence that the review does not have yet, common words more often."""
        value = max(-3.0, min(3.0, value))
        levels = {}
        for level, entries in sorted(self.rng.choice(LEXICON[name]).items()):
            # A word keeps its weight when others of its level are used up.
            fresh = [(word, weight) for word, weight in zip(entries, WEIGHTS, strict=False) if word not in self.used]
            if fresh:
                levels[level] = fresh
        distance = max(WINDOW, min(abs(level - value) for level in levels))
        near = [entry for level, fresh in levels.items() if abs(level - value) <= distance for entry in fresh]
        sums = list(accumulate(weight for _, weight in near))
        word = near[min(bisect(sums, self.rng.random() * sums[-1]), len(near) - 1)][0]
        self.used.add(word)
        return word

    def _fill(self, frame: str, kind: str, noun: str, **slots: str) -> str:
        """Fill a frame with a noun, which verbs agree with, and with words."""
        plural, name = noun.endswith("*"), noun.rstrip("*")
        if "x" in slots:
            thing = f"{slots['x']} {name}"
            slots |= {"a": _article(slots["x"]), "thing": thing if plural else _article(thing)}
        return frame.format(
            n=name,
            was="were" if plural else "was",
            **{"is": "are" if plural else "is"},
            very=self.rng.choice(words.VERY),
            bit=self.rng.choice(words.BIT),
            who=self.rng.choice(words.WHO),
            **slots,
        )

    def _event(self, value: float) -> str:
        level = min(sorted(EVENTS), key=lambda known: abs(known - value))
        event: str = self.rng.choice(EVENTS[level])
        return event.format(
            item=self.rng.choice([*self.things["food"], *self.things["work"]]).rstrip("*"),
            person=self.rng.choice(self.things["person"]).rstrip("*"),
            who=self.rng.choice(words.WHO),
            num=self.rng.randint(2, 60),
        )

    def clause(self, value: float) -> str:
        """One thing, judged."""
        rng = self.rng
        kind, noun = self.unused.pop()
        draw = rng.random()
        if draw < 0.14 and abs(value) > 0.6:
            return self._event(value)
        if draw < 0.24 and abs(value) > 0.6:
            return self._fill(rng.choice(words.FELT), kind, noun, f=self._word("feel", value))
        if draw < 0.32 and abs(value) > 0.6:
            return self._fill(rng.choice(words.DONE[kind]), kind, noun, d=self._word("adv", value))
        if draw < 0.42 and abs(value) > 0.6:
            return self._fill(rng.choice(words.CALLED), kind, noun, m=_article(self._word("noun", value)))
        if draw < (0.58 if value < 0 else 0.48) and 0.5 < abs(value) < 1.6:
            return self._fill(rng.choice(words.DENIED), kind, noun, x=self._word(kind, -1.6 * value))
        if draw < 0.62 and abs(value) < 1.6:
            return self._fill(rng.choice(words.HEDGED), kind, noun, x=self._word(kind, 1.5 * value))
        if draw < 0.72 and abs(value) > 1.2:
            return self._fill(rng.choice(words.STRONG), kind, noun, x=self._word(kind, value / 1.25))
        if draw < 0.86:
            frame = rng.choice(words.TWICE)
            return self._fill(frame, kind, noun, x=self._word(kind, value), y=self._word(kind, value))
        return self._fill(rng.choice(words.DESCRIBED), kind, noun, x=self._word(kind, value))

    def sentence(self, value: float) -> str:
        """One or two clauses that together are worth that much."""
        rng = self.rng
        draw = rng.random()
        contrast = CONTRAST * (1.6 if abs(value) < 0.8 else 0.6)
        if draw < contrast:
            other = -value * rng.uniform(0.3, 1.2) + _normal(rng, 0.7)
            frame: str = rng.choice(words.SECOND if draw < 0.7 * contrast else words.FIRST)
            return frame.format(a=self.clause(other), b=self.clause(value * 1.2))
        if draw < contrast + REPLACED:
            other = -value + _normal(rng, 1)
            who = rng.choice(words.WHO)
            frame = rng.choice(words.REPLACED)
            return frame.format(a=self.clause(other), b=self.clause(value), who=who)
        if draw < contrast + REPLACED + 0.2:
            frame = rng.choice(words.BOTH)
            return frame.format(a=self.clause(value + _normal(rng, 0.4)), b=self.clause(value + _normal(rng, 0.4)))
        return self.clause(value)

    def aside(self) -> str:
        """A sentence that has nothing to do with the quality; some have words of feeling all the same."""
        rng = self.rng
        draw = rng.random()
        frame: str = rng.choice(words.ELSEWHERE if draw < 0.2 else words.VISITS if draw < 0.5 else words.FACTS)
        return frame.format(
            num=rng.randint(2, 60),
            hour=rng.randint(6, 12),
            who=rng.choice(words.WHO),
            who2=rng.choice(words.WHO),
            landmark=rng.choice(words.LANDMARKS),
            holiday=rng.choice(words.HOLIDAYS),
            color=rng.choice(words.COLORS),
            color2=rng.choice(words.COLORS),
            business=rng.choice(self.things["names"]),
            day=rng.choice(words.DAYS),
        )


def _sentence(text: str, end: str = ".") -> str:
    return text[0].upper() + text[1:] + ("" if text[-1] in ".:!?" else end)


def _plain(text: str) -> str:
    """A text without its line breaks and capitals."""
    return text.replace("\\n", " ").replace("  ", " ").lower()


def write_review(rng: Random) -> tuple[int, str]:
    """One review: its stars, and its text with line breaks spelled as backslash and n."""
    stars = rng.choices((1, 2, 3, 4, 5), SHARES)[0]
    mood = (stars - 3) * STEP + _normal(rng, MOOD)
    reviewer = _Reviewer(rng)
    loud = LOUD * abs(mood) if mood > 0 else LOUD / 2 * abs(mood)
    parts = [
        _sentence(reviewer.sentence(mood + _normal(rng, SPREAD)), "!" if rng.random() < loud else ".")
        for _ in range(rng.choice(SENTENCES))
    ]
    for _ in range(rng.choice(ASIDES)):
        parts.insert(rng.randint(0, len(parts)), _sentence(reviewer.aside()))
    text = parts[0]
    for part in parts[1:]:
        text += rng.choice(BREAKS) + part
    return (stars, text) if len(text.split()) <= LONGEST else write_review(rng)


def write_files(folder: Path, seed: int) -> None:
    """Write train.csv, dev.csv, test.csv and unlabeled.txt; no text occurs twice, nor inside an unlabeled one."""
    rng = Random(seed)
    rows = distinct(lambda: write_review(rng), key=lambda row: _plain(row[1]))
    scored: list[str] = []
    for split, size in SIZES.items():
        labeled = list(islice(rows, size))
        # Longer ones have too many words to occur in another by chance.
        scored += [_plain(text) for _, text in labeled if split != "train" and len(text) < 90]
        with (folder / f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(labeled)
    fresh = (text for _, text in rows if not any(short in _plain(text) for short in scored))
    write_lines(folder / "unlabeled.txt", islice(fresh, UNLABELED))
