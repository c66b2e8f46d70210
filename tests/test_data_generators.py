"""The embedded datasets: made again byte for byte, in their formats and sizes, and neither trivial nor leaky."""

import ast
import csv
import json
import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from hftune.data import generators
from hftune.data.generators import DEFAULT_SEED, GENERATORS, generate
from hftune.data.generators.reviews import words
from hftune.files import embedded_data_dir

pytestmark = pytest.mark.numeric

DATA = embedded_data_dir()
FILES = {
    "births": {"wiki.txt", "birth_places_train.tsv", "birth_dev.tsv", "birth_test_inputs.tsv"},
    "boolq-mini": {"train.jsonl", "dev.jsonl"},
    "prose": {"train.txt", "valid.txt", "test.txt"},
    "reviews": {"train.csv", "dev.csv", "test.csv", "unlabeled.txt"},
}


def lines(name: str, file: str) -> list[str]:
    return (DATA / name / file).read_text(encoding="utf-8").splitlines()


def reviews(split: str) -> list[tuple[str, str]]:
    with (DATA / "reviews" / f"{split}.csv").open(encoding="utf-8", newline="") as file:
        return [(stars, text) for stars, text in csv.reader(file, strict=True)]


def boolq(split: str) -> list[dict[str, str | bool]]:
    return [json.loads(line) for line in lines("boolq-mini", f"{split}.jsonl")]


def bag_of_words(train: list[tuple[str, str]], test: list[tuple[str, str]]) -> float:
    """Accuracy of TF-IDF with word pairs and logistic regression on (label, text) rows."""
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    model = LogisticRegression(max_iter=1000).fit(
        vectorizer.fit_transform([text for _, text in train]), [label for label, _ in train]
    )
    return float(model.score(vectorizer.transform([text for _, text in test]), [label for label, _ in test]))


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_the_embedded_files_are_what_the_generator_writes(name: str, tmp_path: Path) -> None:
    made = tmp_path / "not" / "there" / "yet"
    generate(name, made, DEFAULT_SEED)
    assert {path.name for path in made.iterdir()} == FILES[name]
    assert {path.name for path in (DATA / name).iterdir()} == FILES[name] | {"README.md"}
    for file in FILES[name]:
        assert (made / file).read_bytes() == (DATA / name / file).read_bytes(), file


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_another_seed_gives_other_files(name: str, tmp_path: Path) -> None:
    generate(name, tmp_path, DEFAULT_SEED + 1)
    for file in FILES[name]:
        assert (tmp_path / file).read_bytes() != (DATA / name / file).read_bytes(), file


def test_there_is_a_generator_for_every_embedded_dataset() -> None:
    assert set(GENERATORS) == {folder.name for folder in DATA.iterdir() if folder.is_dir()} == set(FILES)
    assert sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file()) < 5_000_000


def test_generators_need_only_the_standard_library_and_no_hash() -> None:
    for path in Path(generators.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "hash", path.name
            allowed = {"csv", "json", "re", "random", "pathlib", "dataclasses", "collections.abc", "tomllib", "types"}
            assert set(names) <= allowed | {"bisect", "importlib", "itertools", "typing"}, path.name


def test_reviews_have_the_sizes_stars_and_line_breaks_of_yelp_small() -> None:
    for split, size in (("train", 4000), ("dev", 500), ("test", 500)):
        rows = reviews(split)
        assert len(rows) == size
        shares = Counter(stars for stars, _ in rows)
        assert set(shares) == set("12345")
        assert max(shares.values()) < 0.29 * size and min(shares.values()) > 0.12 * size  # as uneven as SST-5
        lengths = [len(text.replace("\\n", " ").split()) for _, text in rows]
        assert all("\n" not in text for _, text in rows) and min(lengths) >= 3 and max(lengths) <= 60
        assert 20 < sum(lengths) / size < 26
        assert 0.1 < sum("\\n" in text for _, text in rows) / size < 0.5
    assert len(lines("reviews", "unlabeled.txt")) == 5000


def test_no_review_occurs_twice() -> None:
    texts = [text for split in ("train", "dev", "test") for _, text in reviews(split)]
    texts += lines("reviews", "unlabeled.txt")
    assert len(set(texts)) == len(texts) == 10_000


def test_a_bag_of_words_reads_reviews_better_than_chance_but_badly() -> None:
    score = bag_of_words(reviews("train"), reviews("test"))
    majority = Counter(stars for stars, _ in reviews("test")).most_common(1)[0][1] / 500
    assert majority + 0.1 < score < 0.5


def _valences() -> dict[str, float]:
    """The mean valence of each word of the lexicon."""
    found: dict[str, list[float]] = {}
    for levels in words.LEXICON.values():
        for valence, entries in levels.items():
            for word in entries:
                found.setdefault(word, []).append(float(valence))
    return {word: sum(listed) / len(listed) for word, listed in found.items()}


def _tokens(text: str) -> list[str]:
    return re.findall(r"[a-z][a-z-]+", text.replace("\\n", " ").lower())


def test_sentiment_is_in_many_words_of_which_few_rows_have_few() -> None:
    valences = _valences()
    assert len(valences) > 1000
    assert min(valences.values()) == -3 and max(valences.values()) == 3
    test = [word for _, text in reviews("test") for word in _tokens(text) if word in valences]
    unseen = {}
    for size in (50, 4000):
        seen = {word for _, text in reviews("train")[:size] for word in _tokens(text)}
        unseen[size] = sum(word not in seen for word in test) / len(test)
    assert unseen[50] > 0.6 and unseen[4000] < 0.05


def test_words_and_what_follows_but_decide_the_stars() -> None:
    """The valence of the words agrees with the stars, and of two contrasted sides it is that of the second."""
    valences = _valences()

    def mean(text: str) -> float:
        found = [valences[word] for word in _tokens(text) if word in valences]
        return sum(found) / len(found) if found else 0.0

    rows = [(int(stars) - 3, text) for stars, text in reviews("train") if stars != "3"]
    agreeing = [stars * mean(text) > 0 for stars, text in rows if abs(mean(text)) > 0.5]
    assert 0.8 < sum(agreeing) / len(agreeing) < 0.95
    sides = [(stars, *text.split(", but ")) for stars, text in rows if text.count(", but ") == 1]
    before, after = (sum(row[0] * mean(row[side]) > 0 for row in sides) for side in (1, 2))
    assert len(sides) > 100
    assert after > 1.3 * before


def test_boolq_rows_have_the_fields_of_boolq_and_its_share_of_yes() -> None:
    for split, size in (("train", 4000), ("dev", 800)):
        rows = boolq(split)
        assert len(rows) == size
        assert {tuple(row) for row in rows} == {("question", "title", "passage", "answer")}
        assert all(isinstance(row["answer"], bool) for row in rows)
        assert 0.59 < sum(bool(row["answer"]) for row in rows) / size < 0.65
        for row in rows:
            question, title, passage = str(row["question"]), str(row["title"]), str(row["passage"])
            assert question == question.lower() and title.lower() in question and title in passage
    passages = [row["passage"] for split in ("train", "dev") for row in boolq(split)]
    assert len(set(passages)) == len(passages)


def test_a_question_without_its_passage_has_no_answer() -> None:
    def pairs(split: str, *fields: str) -> list[tuple[str, str]]:
        return [(str(row["answer"]), " ".join(str(row[field]) for field in fields)) for row in boolq(split)]

    majority = sum(bool(row["answer"]) for row in boolq("dev")) / 800
    assert abs(bag_of_words(pairs("train", "question"), pairs("dev", "question")) - majority) < 0.04
    both = bag_of_words(pairs("train", "question", "passage"), pairs("dev", "question", "passage"))
    assert majority + 0.01 < both < 0.75


def _people(file: str) -> dict[str, str]:
    found = {}
    for line in lines("births", file):
        question, _, place = line.partition("\t")
        assert question.startswith("Where was ") and question.endswith(" born?"), line
        found[question.removeprefix("Where was ").removesuffix(" born?")] = place
    return found


def test_births_are_asked_about_people_of_the_corpus() -> None:
    corpus: dict[str, list[str]] = {}
    for line in lines("births", "wiki.txt"):
        assert len(line) <= 112, line
        name, _, text = line.partition(". ")
        assert text.endswith(" .") and name.split()[-1] in text
        corpus.setdefault(name, []).append(text)
    train, validation = _people("birth_places_train.tsv"), _people("birth_dev.tsv")
    test = _people("birth_test_inputs.tsv")
    assert (len(train), len(validation), len(test)) == (160, 100, 80)
    for name, place in (train | validation).items():
        assert len(set(corpus[name])) == len(corpus[name]) >= 4
        assert all(place in text for text in corpus[name])
    assert set(test.values()) == {""}
    assert 15 <= len(set(test) - set(corpus)) <= len(test) / 3
    for one, other in combinations((train, validation, test), 2):
        assert not set(one) & set(other)
        assert not {name.split()[-1] for name in one} & {name.split()[-1] for name in other}


def test_no_single_place_answers_many_births() -> None:
    places = Counter(_people("birth_dev.tsv").values())
    assert places["London"] == 5
    assert places.most_common(1)[0][1] <= 6
    assert set(places) <= set(_people("birth_places_train.tsv").values())


@pytest.mark.parametrize(("file", "size"), [("train.txt", 900_000), ("valid.txt", 60_000), ("test.txt", 60_000)])
def test_prose_is_plain_text_of_complete_sentences(file: str, size: int) -> None:
    text = (DATA / "prose" / file).read_text(encoding="utf-8")
    assert size <= len(text) < size + 4_000
    assert not set("{}|") & set(text)
    paragraphs = [line for line in text.splitlines() if line]
    assert all(line[0] in '"' or line[0].isupper() for line in paragraphs)
    assert all(line.rstrip('"')[-1] in ".?!" for line in paragraphs)


def test_no_story_occurs_twice_and_few_paragraphs_do() -> None:
    stories = [story for file in FILES["prose"] for story in (DATA / "prose" / file).read_text("utf-8").split("\n\n")]
    assert len(stories) == len(set(stories)) > 500
    paragraphs = [line for line in lines("prose", "train.txt") if len(line) > 60]
    assert len(set(paragraphs)) > 0.99 * len(paragraphs)


def test_every_generator_is_a_module_with_its_words() -> None:
    assert generate.__doc__ and "folder:" in generate.__doc__ and "seed:" in generate.__doc__
    folder = Path(generators.__file__).parent
    modules = {path.stem for path in folder.glob("[!_]*.py")}
    assert modules == {name.replace("-", "_") for name in GENERATORS} == {path.stem for path in folder.glob("*.toml")}
