"""Generated short stories: plain English text for language models and tokenizers.

Each story is a small quest that is planned before it is written: who owns what, who lives where and what was promised
stay the same to the end, so a model that remembers the beginning predicts the rest better. A paragraph is one line; a
blank line ends a story. The words are in prose.toml.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from random import Random

from . import distinct, words_of

words = words_of(__file__)

SIZES = {"train": 900_000, "valid": 60_000, "test": 60_000}
"""Characters in each file; the last story is complete."""


@dataclass(frozen=True)
class Character:
    """A character: name, pronouns, trade and trait."""

    name: str
    pronouns: tuple[str, str, str]
    trade: str
    trait: str


class _Story:
    """One quest: the hero wants a thing, and each owner on the way wants another thing for it."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        depth = rng.choice((1, 1, 2, 2, 3))
        self.cast = self._people(depth + 3)
        self.hero = self.cast.pop()
        places = rng.sample(words.PLACES, depth + 4)
        self.home, self.places = places[0], places[1:]
        makes, things = rng.sample(words.MAKES, depth + 1), rng.sample(words.THINGS, depth + 1)
        self.things = [f"{make} {thing}" for make, thing in zip(makes, things, strict=True)]
        self.paragraphs: list[list[str]] = [[]]

    def _people(self, count: int) -> list[Character]:
        women = [(name, ("she", "her", "her")) for name in self.rng.sample(words.WOMEN, count)]
        men = [(name, ("he", "him", "his")) for name in self.rng.sample(words.MEN, count)]
        named = self.rng.sample(women + men, count)
        trades, traits = self.rng.sample(words.TRADES, count), self.rng.sample(words.TRAITS, count)
        return [Character(*who, trade, trait) for who, trade, trait in zip(named, trades, traits, strict=True)]

    def _say(self, frames: list[str], other: Character | None = None, **details: str) -> None:
        """Add a sentence about the hero and perhaps another person to the current paragraph."""
        rng, hero, other = self.rng, self.hero, other or self.cast[0]
        he, him, his = hero.pronouns
        ohe, ohim, ohis = other.pronouns
        text = rng.choice(frames).format(
            **{"x": self.things[0]} | details,
            **{"h": hero.name, "he": he, "him": him, "his": his, "trade": hero.trade, "trait": hero.trait},
            **{"o": other.name, "ohe": ohe, "ohim": ohim, "ohis": ohis, "otrade": other.trade, "otrait": other.trait},
            home=self.home,
            time=rng.choice(words.TIMES),
            mood=rng.choice(words.MOODS),
            years=str(rng.randint(2, 40)),
            friend=rng.choice(words.FRIENDS),
            count=rng.choice(words.GAINS),
        )
        self.paragraphs[-1].append(_polish(text))

    def _scenery(self) -> None:
        rng = self.rng
        draw = rng.random()
        if draw < 0.2:
            self._say([rng.choice(words.WEATHERS) + "."])
        elif draw < 0.35:
            parts = (words.NUMBERS, words.BEINGS, words.DOINGS, words.SPOTS)
            self._say([" ".join(rng.choice(part) for part in parts) + "."])
        elif draw < 0.5:
            self._say(words.REFLECT)
        elif draw < 0.85:
            self._say(words.GOSSIP, gossip=self._gossip())

    def _gossip(self) -> str:
        """Something about people and things that have no part in the story."""
        rng = self.rng
        frame: str = rng.choice(words.RUMORS)
        return frame.format(
            one=rng.choice(words.TRADES),
            two=rng.choice(words.TRADES),
            thing=f"{rng.choice(words.MAKES)} {rng.choice(words.THINGS)}",
            place=rng.choice(words.PLACES),
            time=rng.choice(words.TIMES),
            mood=rng.choice(words.MOODS),
            beings=rng.choice(words.BEINGS),
            done=rng.choice(words.DONE),
            how=rng.choice(words.HOW),
        )

    def _visit(self, place: str) -> None:
        self.paragraphs.append([])
        self._say(words.TRAVEL, there=place)
        self._scenery()

    def _owner(self, level: int) -> None:
        """Get thing number `level`: from its owner for the next thing, or, at the end of the chain, from its place."""
        thing = self.things[level]
        guide, place = self.cast[-1], self.places[level]
        if level + 1 == len(self.things):
            self._say(words.RUMOR, self.cast[level - 1] if level else guide, x=thing, there=place)
            self._visit(place)
            self._say(words.FIND, x=thing)
            return
        owner, price = self.cast[level], self.things[level + 1]
        self._visit(place)
        self._say(words.MEET, owner)
        self._say(words.ASK, owner, x=thing)
        self._say(words.HAS, owner, x=thing, y=price)
        if level + 2 < len(self.things):
            follow = {"p": self.cast[level + 1].name, "there": self.places[level + 1]}
            self._say(words.HINT, owner, x=price, **follow)
        self._scenery()
        self._owner(level + 1)
        self._visit(place)
        self._say(words.TRADE, owner, x=thing, y=price)

    def write(self) -> str:
        """The whole story, one line a paragraph."""
        reason = self.rng.choice(words.REASONS)
        he, him, his = self.hero.pronouns
        self._say(words.OPENING)
        self._scenery()
        self._say(words.WANT, why=reason.format(he=he, him=him, his=his))
        guide, owner = self.cast[-1], self.cast[0]
        self._visit(self.places[-1])
        self._say(words.MEET, guide)
        self._say(words.ASK, guide)
        self._say(words.HINT, guide, p=owner.name, there=self.places[0])
        self._scenery()
        self._owner(0)
        self.paragraphs.append([])
        self._say(words.HOME)
        self._scenery()
        self._say(words.ENDING)
        return "\n".join(" ".join(sentences) for sentences in self.paragraphs) + "\n"


def _polish(text: str) -> str:
    """Capitalize every sentence, since any can begin with a pronoun, and write "an" before a vowel."""
    text = re.sub(r'(^|[.?!] |\." )("?)([a-z])', lambda found: found[1] + found[2] + found[3].upper(), text)
    return re.sub(r"\b([Aa]) (?=[aeiou]|hon|hour)", r"\1n ", text)


def write_files(folder: Path, seed: int) -> None:
    """Write train.txt, valid.txt and test.txt; no story occurs twice."""
    rng = Random(seed)
    every_story = distinct(lambda: _Story(rng).write(), key=str)
    for split, size in SIZES.items():
        stories: list[str] = []
        while sum(map(len, stories)) < size:
            stories.append(next(every_story))
        (folder / f"{split}.txt").write_text("\n".join(stories), encoding="utf-8", newline="\n")
