"""Generated short stories: plain English text for language models and tokenizers.

Called by `hftune data make prose` through the table GENERATORS. Each story is a small quest that is planned first and
told second: who owns what, who lives where and what was promised stay the same to the end, so a model that remembers
the beginning predicts the rest better. A paragraph is one line; a blank line ends a story.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from random import Random

from . import prose_words as words

SIZES = {"train": 900_000, "valid": 60_000, "test": 60_000}
"""Characters in each file; the last story is told to its end."""


@dataclass(frozen=True)
class Person:
    """A character: name, pronouns, trade and trait."""

    name: str
    pronouns: tuple[str, str, str]
    trade: str
    trait: str


def _choice(rng: Random, options: str) -> str:
    return rng.choice(options.split("|"))


def _sample(rng: Random, options: str, count: int) -> list[str]:
    return rng.sample(options.split("|"), count)


class _Story:
    """One quest: the hero wants a thing, and each owner on the way wants another thing for it."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        depth = rng.choice((1, 1, 2, 2, 3))
        self.cast = self._people(depth + 3)
        self.hero = self.cast.pop()
        places = _sample(rng, words.PLACES, depth + 4)
        self.home, self.places = places[0], places[1:]
        makes, things = _sample(rng, words.MAKES, depth + 1), _sample(rng, words.THINGS, depth + 1)
        self.things = [f"{make} {thing}" for make, thing in zip(makes, things, strict=True)]
        self.paragraphs: list[list[str]] = [[]]

    def _people(self, count: int) -> list[Person]:
        women = [(name, ("she", "her", "her")) for name in _sample(self.rng, words.WOMEN, count)]
        men = [(name, ("he", "him", "his")) for name in _sample(self.rng, words.MEN, count)]
        named = self.rng.sample(women + men, count)
        trades, traits = _sample(self.rng, words.TRADES, count), _sample(self.rng, words.TRAITS, count)
        return [Person(*who, trade, trait) for who, trade, trait in zip(named, trades, traits, strict=True)]

    def _say(self, frames: str, other: Person | None = None, **details: str) -> None:
        """Add a sentence about the hero and perhaps another person to the current paragraph."""
        rng, hero, other = self.rng, self.hero, other or self.cast[0]
        he, him, his = hero.pronouns
        ohe, ohim, ohis = other.pronouns
        text = _choice(rng, frames).format(
            **{"x": self.things[0]} | details,
            **{"h": hero.name, "he": he, "him": him, "his": his, "trade": hero.trade, "trait": hero.trait},
            **{"o": other.name, "ohe": ohe, "ohim": ohim, "ohis": ohis, "otrade": other.trade, "otrait": other.trait},
            home=self.home,
            time=_choice(rng, words.TIMES),
            mood=_choice(rng, words.MOODS),
            years=str(rng.randint(2, 40)),
            friend=_choice(rng, words.FRIENDS),
            count=_choice(rng, words.GAINS),
        )
        self.paragraphs[-1].append(_polish(text))

    def _scenery(self) -> None:
        rng = self.rng
        draw = rng.random()
        if draw < 0.2:
            self._say(_choice(rng, words.WEATHERS) + ".")
        elif draw < 0.35:
            parts = (words.NUMBERS, words.BEINGS, words.DOINGS, words.SPOTS)
            self._say(" ".join(_choice(rng, part) for part in parts) + ".")
        elif draw < 0.5:
            self._say(words.REFLECT)
        elif draw < 0.85:
            self._say(words.GOSSIP, gossip=self._gossip())

    def _gossip(self) -> str:
        """Something about people and things that have no part in the story."""
        rng = self.rng
        return _choice(rng, words.RUMORS).format(
            one=_choice(rng, words.TRADES),
            two=_choice(rng, words.TRADES),
            thing=f"{_choice(rng, words.MAKES)} {_choice(rng, words.THINGS)}",
            place=_choice(rng, words.PLACES),
            time=_choice(rng, words.TIMES),
            mood=_choice(rng, words.MOODS),
            beings=_choice(rng, words.BEINGS),
            done=_choice(rng, words.DONE),
            how=_choice(rng, words.HOW),
        )

    def _visit(self, place: str) -> None:
        self.paragraphs.append([])
        self._say(words.TRAVEL, there=place)
        self._scenery()

    def _owner(self, level: int) -> None:
        """Get thing number `level`: from its owner for the next thing, or, at the end of the chain, where it lies."""
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

    def tell(self) -> str:
        """The whole story, one line a paragraph."""
        reason = _choice(self.rng, words.REASONS)
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
    """Capitalise every sentence, since a pronoun may stand first in any, and write "an" where it is due."""
    text = re.sub(r'(^|[.?!] |\." )("?)([a-z])', lambda found: found[1] + found[2] + found[3].upper(), text)
    return re.sub(r"\b([Aa]) (?=[aeiou]|hon|hour)", r"\1n ", text)


def make_prose(folder: Path, seed: int) -> None:
    """Write train.txt, valid.txt and test.txt; no story occurs twice.

    Args:
        folder: where the files go; it is made if need be.
        seed: the same seed gives the same bytes on every platform.
    """
    rng = Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    told: set[str] = set()
    for split, size in SIZES.items():
        stories: list[str] = []
        while sum(map(len, stories)) < size:
            story = _Story(rng).tell()
            if story not in told:
                told.add(story)
                stories.append(story)
        (folder / f"{split}.txt").write_text("\n".join(stories), encoding="utf-8", newline="\n")
