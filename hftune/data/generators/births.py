"""Invented people and where they were born: a corpus that says it, and questions that ask for it.

Called by `hftune data make births` through the table GENERATORS. The people of the dev questions and most of the test
questions occur in the corpus only, never among the training questions: who answers must have read. Some people of the
test questions occur nowhere, so that a model that knows can be told from one that makes it up.
"""

from dataclasses import dataclass
from pathlib import Path
from random import Random

TRAIN, DEV, TEST, UNKNOWN = 160, 100, 60, 20
"""People with a training question, a dev question, a test question, and a test question but no line in the corpus."""
WORDINGS = 4
"""Lines a person has in the corpus, each worded differently."""

FIRST_NAMES = (
    "Ada Albert Alice Amir Anna Anton Arthur Beatrice Bruno Carla Cecil Clara Conrad Daria David Diana Edgar "
    "Elena Elias Emma Erik Esther Felix Fiona Frank Greta Gustav Hanna Harold Helen Henry Hugo Ida Igor Irene "
    "Isaac Ivan Jane Jonas Julia Karl Laura Leo Lena Louis Lucy Marco Maria Martin Maud Max Mira Nadia Nina "
    "Noah Nora Olga Oscar Otto Paul Petra Philip Rosa Ruth Samuel Sara Simon Sofia Stella Theo Thomas Ursula "
    "Vera Victor Walter Wanda Yusuf Zoe"
)
ROOTS = (
    "Ald Ash Bar Bel Berg Blom Brand Cald Carl Corn Dahl Dun East Eck Fair Falk Fern Gar Gold Grim Hart Heath "
    "Holm Kell Kirk Lamb Lind Mar Mill Nor Oak Ost Pem Quin Ram Rosen Sand Silver Stan Sunder Thorn Under "
    "Vander Wal West Win Wood York"
)
ENDINGS = (
    "berg by croft dale ell en er feld ford gren ham ing land ley man mark mond quist stein stone ton well wick wood"
)
PLACES = (
    "London Paris Berlin Vienna Prague Warsaw Lisbon Madrid Oslo Dublin Athens Cairo Toronto Chicago Boston "
    "Sydney Tokyo Delhi Lima Quito Geneva Naples Venice Munich Riga Sofia Zagreb Tunis Havana Nairobi Seoul "
    "Perth"
)
JOBS = (
    "painter poet sailor lawyer botanist chemist singer farmer teacher sculptor printer boxer dancer judge "
    "pianist baker novelist engineer banker actor rower surgeon pilot cyclist"
)
FRAMES = (
    "{name} was born in {place} .",
    "Born in {place}, {last} became a {job} .",
    "{name} (born {year} in {place}) is a {job} .",
    "{last} was born in {place} in {year} and worked as a {job} .",
    "The {job} {name} comes from {place} .",
    "{name} is a {job} who was born in {place} and lives in {home} .",
    "In {year} {name} was born in {place} .",
    "{last}, a {job}, is a native of {place} .",
)


@dataclass(frozen=True)
class Person:
    """Someone invented, with what the corpus may tell of them."""

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
        """What the corpus says of this person."""
        details = {"name": self.name, "last": self.last, "place": self.place, "home": self.home, "job": self.job}
        return [f"{self.name}. {frame.format(**details, year=self.year)}" for frame in rng.sample(FRAMES, WORDINGS)]


def _deal_places(rng: Random, count: int) -> list[str]:
    """A place for each of `count` people: London for one in twenty, in every twenty, the others evenly."""
    london, *others = PLACES.split()
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
    surnames = [root + ending for root in ROOTS.split() for ending in ENDINGS.split() if root[-1] != ending[0]]
    people = []
    for surname, place in zip(rng.sample(surnames, count), _deal_places(rng, count), strict=True):
        first, job = rng.choice(FIRST_NAMES.split()), rng.choice(JOBS.split())
        home = rng.choice([other for other in PLACES.split() if other != place])
        people.append(Person(first, surname, place, home, job, rng.randint(1850, 1990)))
    return people


def make_births(folder: Path, seed: int) -> None:
    """Write wiki.txt, birth_places_train.tsv, birth_dev.tsv and birth_test_inputs.tsv.

    Args:
        folder: where the files go; it is made if need be.
        seed: the same seed gives the same bytes on every platform.
    """
    rng = Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    people = invent_people(rng, TRAIN + DEV + TEST + UNKNOWN)
    train, dev, test = people[:TRAIN], people[TRAIN : TRAIN + DEV], people[TRAIN + DEV :]
    corpus = [line for person in people[:-UNKNOWN] for line in person.lines(rng)]
    rng.shuffle(corpus)
    rng.shuffle(test)

    def write(name: str, lines: list[str]) -> None:
        (folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8", newline="\n")

    write("wiki.txt", corpus)
    write("birth_places_train.tsv", [f"{person.question}\t{person.place}" for person in train])
    write("birth_dev.tsv", [f"{person.question}\t{person.place}" for person in dev])
    write("birth_test_inputs.tsv", [person.question for person in test])
