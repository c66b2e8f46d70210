"""Invented people and where they were born: a corpus with their birth places, and questions about them.

The people of the dev questions and most of the test questions occur in the corpus only, never among the training
questions: a model can answer only what it has read. Some people of the test questions occur nowhere, which separates
knowledge from hallucination.
"""

from dataclasses import dataclass
from pathlib import Path
from random import Random

from . import words_of, write_lines

TRAIN, DEV, TEST, UNKNOWN = 160, 100, 60, 20
"""People with a training question, a dev question, a test question, and a test question but no line in the corpus."""
WORDINGS = 4
"""Lines a person has in the corpus, each worded differently."""

words = words_of(__file__)


@dataclass(frozen=True)
class Person:
    """An invented person, with the facts that the corpus can contain."""

    first: str
    last: str
    place: str
    home: str
    job: str
    year: int

    @property
    def name(self) -> str:
        """First and last name."""
        return f"{self.first} {self.last}"

    @property
    def question(self) -> str:
        """The question whose answer is the place."""
        return f"Where was {self.name} born?"

    def lines(self, rng: Random) -> list[str]:
        """The lines about this person in the corpus."""
        details = {"name": self.name, "last": self.last, "place": self.place, "home": self.home, "job": self.job}
        frames = rng.sample(words.FRAMES, WORDINGS)
        return [f"{self.name}. {frame.format(**details, year=self.year)}" for frame in frames]


def _deal_places(rng: Random, count: int) -> list[str]:
    """A birth place for each of `count` people.

    Exactly one person in each block of twenty was born in London, so that always answering London scores about 5 % on
    every split, as on the real data. The other places are dealt from a shuffled deck, so that all occur equally often.
    """
    london, *others = words.PLACES
    places: list[str] = []
    deck: list[str] = []
    while len(places) < count:
        if len(deck) < 19:
            deck += rng.sample(others, len(others))
        twenty = [london, *deck[:19]]
        del deck[:19]
        rng.shuffle(twenty)
        places += twenty
    return places[:count]


def invent_people(rng: Random, count: int) -> list[Person]:
    """People whose last names are all different."""
    surnames = [root + ending for root in words.ROOTS for ending in words.ENDINGS if root[-1] != ending[0]]
    people = []
    for surname, place in zip(rng.sample(surnames, count), _deal_places(rng, count), strict=True):
        first, job = rng.choice(words.FIRST_NAMES), rng.choice(words.JOBS)
        home = rng.choice([other for other in words.PLACES if other != place])
        people.append(Person(first, surname, place, home, job, rng.randint(1850, 1990)))
    return people


def write_files(folder: Path, seed: int) -> None:
    """Write wiki.txt, birth_places_train.tsv, birth_dev.tsv and birth_test_inputs.tsv."""
    rng = Random(seed)
    people = invent_people(rng, TRAIN + DEV + TEST + UNKNOWN)
    train, dev, test = people[:TRAIN], people[TRAIN : TRAIN + DEV], people[TRAIN + DEV :]
    corpus = [line for person in people[:-UNKNOWN] for line in person.lines(rng)]
    rng.shuffle(corpus)
    rng.shuffle(test)  # otherwise the unknown people would be the last ones

    write_lines(folder / "wiki.txt", corpus)
    write_lines(folder / "birth_places_train.tsv", (f"{person.question}\t{person.place}" for person in train))
    write_lines(folder / "birth_dev.tsv", (f"{person.question}\t{person.place}" for person in dev))
    write_lines(folder / "birth_test_inputs.tsv", (person.question for person in test))
