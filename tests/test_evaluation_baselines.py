"""Baselines on planted texts, and the constant answer."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from facts import hftune_error, mentions

from hftune.evaluation import baselines
from hftune.tasks import answer_baselines

pytestmark = pytest.mark.numeric

LABELS = ("no", "yes")
FILLER = ("the food", "a table", "we went", "last week", "in town")


def planted(rows: int, seed: int) -> tuple[list[str], list[int]]:
    rng = np.random.default_rng(seed)
    gold = (np.arange(rows) % 3 == 0).astype(int).tolist()
    return [f"{FILLER[rng.integers(5)]} {('awful', 'lovely')[label]} {FILLER[rng.integers(5)]}" for label in gold], gold


def test_bag_of_words_finds_a_planted_word_and_majority_the_commonest_label() -> None:
    texts, gold = planted(60, 1)
    validation, truth = planted(30, 2)
    found = baselines.classification_baselines(texts, None, gold, {"validation": (validation, None, truth)}, LABELS)
    assert found["majority"]["validation"]["accuracy"] == pytest.approx(20 / 30)
    assert found["majority"]["validation"]["per_class"]["yes"] == {"precision": 0, "recall": 0, "f1": 0, "support": 10}
    assert found["majority"]["validation"]["loss"] == pytest.approx(-(20 * np.log(41 / 62) + 10 * np.log(21 / 62)) / 30)
    assert found["tfidf"]["validation"]["accuracy"] == 1.0
    assert "note" not in found["tfidf"]["validation"]


def test_majority_is_that_of_train_not_of_the_scored_split() -> None:
    texts, gold = planted(60, 1)
    split = (["lovely", "lovely", "awful"], None, [1, 1, 0])
    found = baselines.classification_baselines(texts, None, gold, {"test": split}, LABELS)
    assert found["majority"]["test"]["accuracy"] == pytest.approx(1 / 3)


def test_the_two_texts_of_a_pair_are_distinguished() -> None:
    first, second = ["red", "blue"] * 30, ["blue", "red"] * 30
    gold = [0, 1] * 30
    split = {"validation": (["red", "blue"], ["blue", "red"], [0, 1])}
    found = baselines.classification_baselines(first, second, gold, split, LABELS)
    assert found["tfidf"]["validation"]["accuracy"] == 1.0
    # Only the second text differs here: a bag that read the first alone would give both rows one label.
    fitted = baselines.BagOfWords.fit(["same"] * 60, second, gold, 2)
    assert fitted.logits(["same", "same"], ["blue", "red"]).argmax(axis=1).tolist() == [0, 1]


def test_word_order_counts_through_word_pairs() -> None:
    texts = ["not bad but good", "not good but bad"] * 20
    fitted = baselines.BagOfWords.fit(texts, None, [1, 0] * 20, 2)
    assert fitted.logits(["not bad", "not good"], None).argmax(axis=1).tolist() == [1, 0]


def test_probabilities_by_row_and_unseen_label() -> None:
    texts, gold = planted(60, 1)
    logits = baselines.BagOfWords.fit(texts, None, gold, 3).logits(texts, None)
    assert logits.shape == (60, 3)
    assert np.exp(logits).sum(axis=1) == pytest.approx(np.ones(60))
    assert (logits[:, 2] < -20).all()
    assert np.isfinite(baselines.Majority.fit(gold, 3).logits(texts, None)).all()


def test_signs_without_letters_and_blank_second_texts_are_no_obstacle() -> None:
    fitted = baselines.BagOfWords.fit(["😀", "😡"] * 10, ["", " "] * 10, [1, 0] * 10, 2)
    assert fitted.logits(["😡", "😀"], ["", ""]).argmax(axis=1).tolist() == [0, 1]


def test_split_without_labels_is_left_out() -> None:
    texts, gold = planted(30, 1)
    splits = {"validation": (texts, None, gold), "test": (texts, None, [-1] * 30)}
    found = baselines.classification_baselines(texts, None, gold, splits, LABELS)
    assert list(found["majority"]) == list(found["tfidf"]) == ["validation"]


def test_a_fit_that_was_cut_short_is_noted_next_to_the_scores(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(baselines, "ITERATIONS", 1)
    monkeypatch.setattr(baselines, "MOST_ROWS", 40)
    texts, gold = planted(60, 1)
    with caplog.at_level(logging.WARNING):
        found = baselines.classification_baselines(texts, None, gold, {"validation": (texts, None, gold)}, LABELS)
    note = found["tfidf"]["validation"]["note"]
    assert mentions(note, "40 of 60")
    assert mentions(note, "converge", "1 iteration")
    assert mentions(caplog.text, "converge", "1 iteration")
    assert "note" not in found["majority"]["validation"]


@pytest.mark.parametrize(("texts", "gold", "words"), [(["a", "b"], [1, 1], "label"), ([" ", ""], [0, 1], "texts")])
def test_unusable_training_rows_are_refused(texts: list[str], gold: list[int], words: str) -> None:
    with hftune_error(2, words):
        baselines.BagOfWords.fit(texts, None, gold, 2)


def test_constant_answer() -> None:
    gold = ["London", "Paris ", "London\n", "Rome"]
    assert answer_baselines.constant_answer(gold, "London") == 0.5
    assert answer_baselines.constant_answer(gold, "london") == 0.0
    assert answer_baselines.most_frequent_answer(gold) == "London"
    assert answer_baselines.most_frequent_answer(["b", "a"]) == "a"
    with hftune_error("answers"):
        answer_baselines.constant_answer([], "London")
