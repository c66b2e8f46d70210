"""Data with thousands of labels: no step takes memory for labels times labels, and what is left out is reported."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from facts import facts, hftune_error, mentions
from finished_run import finished_run, metrics
from scipy.special import softmax
from sklearn import metrics as sk
from tiny import QUICK, write_csv

from hftune.evaluation import baselines
from hftune.evaluation import metrics as scores
from hftune.evaluation.metrics import expected_calibration_error, reliability_bins
from hftune.files import read_json
from hftune.hub.card import _labels, remarks, score_table
from hftune.recipe import load_recipe
from hftune.runs.report import write_report
from hftune.tasks.classification import (
    MOST_PROBABILITIES,
    check_memory,
    class_weights,
    prediction_rows,
    untrained_guess,
)
from hftune.tasks.task import Task

Hftune = Callable[..., tuple[int, str, str]]

MANY = 100_000
NAMES = tuple(f"label {number}" for number in range(MANY))


@contextmanager
def within(megabytes: int) -> Iterator[None]:
    """What Python and numpy hold at most."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < megabytes * 2**20, f"{peak / 2**20:.0f} MB"


def splits(rows: int = 1000, labels: int = MANY) -> Any:
    split = {"text": [f"word{number} on day {number % 7}" for number in range(rows)], "label": list(range(rows))}
    names = NAMES[:labels]
    return SimpleNamespace(validation=split, labels=names, named={"train": range(20_000), "validation": range(rows)})


def test_metrics_are_tried_on_a_bounded_part_of_validation() -> None:
    with within(64):
        guess = untrained_guess(splits())
    assert guess.predictions.shape[1] == MANY and len(guess.label_ids) >= 2
    assert (guess.predictions.argmax(axis=1) == guess.label_ids).all()
    few = splits(rows=50, labels=60)
    assert untrained_guess(few).label_ids.tolist() == list(range(50)), "all of validation where it fits"


def test_scores_need_no_matrix_of_labels_and_are_those_of_scikit_learn() -> None:
    draw = np.random.default_rng(0)
    gold = draw.integers(0, MANY, 2000)
    predicted = np.where(draw.random(2000) < 0.5, gold, draw.integers(0, MANY, 2000))
    with within(64):
        for score in (scores.mcc, scores.quadratic_kappa, scores.balanced_accuracy):
            assert 0.3 < score(predicted, gold) < 0.7
    for labels in (2, 3, 7):
        gold, predicted = draw.integers(0, labels, 200), draw.integers(0, labels, 200)
        assert scores.mcc(predicted, gold) == pytest.approx(sk.matthews_corrcoef(gold, predicted))
        kappa = sk.cohen_kappa_score(gold, predicted, weights="quadratic", labels=range(labels))
        assert scores.quadratic_kappa(predicted, gold) == pytest.approx(kappa)
        assert scores.balanced_accuracy(predicted, gold) == pytest.approx(sk.balanced_accuracy_score(gold, predicted))


def test_scores_in_parts_are_those_of_the_whole() -> None:
    draw = np.random.default_rng(0)
    logits, gold, names = draw.normal(size=(90, 5)), draw.integers(0, 5, 90), NAMES[:5]
    whole = scores.classification_scores(logits, gold, names)
    parts = scores.scores_in_parts([(logits[:7], gold[:7]), (logits[7:], gold[7:])], names)
    assert parts == whole
    probabilities = softmax(logits, axis=1)
    assert whole["ece"] == expected_calibration_error(reliability_bins(probabilities, gold))
    assert whole["loss"] == pytest.approx(sk.log_loss(gold, probabilities, labels=range(5)))


@pytest.mark.parametrize(("rows", "labels"), [(20_000, 1_000), (2_000, MANY)])
def test_a_bag_of_words_that_is_too_large_is_left_out_with_the_reason(rows: int, labels: int) -> None:
    texts = [f"word{number} on day {number % 7}" for number in range(rows)]
    gold = [number % labels for number in range(rows)]
    held_out = {"validation": (texts[:1000], None, gold[:1000])}
    with within(400):
        found = baselines.classification_baselines(texts, None, gold, held_out, NAMES[:labels])
    note = found["tfidf"]["validation"]["note"]
    assert found["tfidf"]["validation"].keys() == {"note"} and note.startswith("left out: ")
    assert mentions(note, f"{rows:,}", f"{labels:,} labels")
    assert found["majority"]["validation"]["accuracy"] == pytest.approx(1 / 1000)


def test_memory_is_estimated_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, gold = [f"word{number} {'x' * 100}" for number in range(1000)], [number % 100 for number in range(1000)]
    monkeypatch.setattr(baselines.psutil, "virtual_memory", lambda: SimpleNamespace(available=2**30))
    with pytest.raises(baselines.TooLarge, match=facts("100 labels", "1.1 GB", "0.5 GB")):
        baselines.BagOfWords.fit(texts, None, gold, 100)
    baselines.BagOfWords.fit(texts[:50], None, [number % 2 for number in range(50)], 2)


def test_scoring_that_does_not_fit_is_refused_before_training() -> None:
    check_memory(splits(), 2**33)
    with hftune_error("validation", "6.0 GB", "1000 rows") as caught:
        check_memory(splits(), 2**31)
    assert "data.label_column_name" in caught.value.hint


def test_predictions_list_the_most_probable_labels_and_the_right_one() -> None:
    logits = np.arange(2 * MANY, dtype=np.float32).reshape(2, MANY) % MANY / 1000
    lines = prediction_rows([{"text": "a", "label": 3}, {"text": "b"}], logits, NAMES)
    first, second = (line["probabilities"] for line in lines)
    assert len(first) == MOST_PROBABILITIES + 1 and len(second) == MOST_PROBABILITIES
    assert NAMES[3] in first and lines[0]["label"] == NAMES[-1] == max(first, key=first.__getitem__)
    assert lines[0]["gold"] == NAMES[3]


def test_a_label_that_is_not_there_is_found_at_once_among_many() -> None:
    weights = dict.fromkeys(NAMES[:5000], 1.0)
    with hftune_error("'other'", "label 0", 5000):
        class_weights({**weights, "other": 1.0}, NAMES[:5000], [0, 1])


def test_a_report_of_many_labels_has_bounded_tables_and_no_matrix(tmp_path: Path) -> None:
    names = list(NAMES[:5000])
    per_class = {name: {"precision": 0.5, "recall": 0.5, "f1": 0.5, "support": 1} for name in names}
    left_out = {split: {"note": "left out: 5,000 labels would take too long"} for split in ("validation", "test")}
    messages = metrics(labels=names)
    messages["splits"] = {split: {**found, "per_class": per_class} for split, found in messages["splits"].items()}
    messages["baselines"] = {**messages["baselines"], "tfidf": left_out}
    run = finished_run(tmp_path / "run")
    run.write_metrics(messages)
    lines = [{"id": n, "text": "x", "gold": names[n], "label": names[n % 50], "probabilities": {names[n % 50]: 0.5}}
             for n in range(400)]  # fmt: skip
    for split in ("validation", "test"):
        run.write_predictions(split, lines)
    with within(300):
        page = write_report(run).read_text(encoding="utf-8")
    assert len(page) < 1_000_000 and "4,900 more labels" in page
    assert mentions(page, "bag of words", "5000 labels")
    assert not (run.plots / "confusion.png").exists()
    assert run.read_metrics()["baselines"]["tfidf"] == left_out
    assert "bag of words" not in score_table(messages) and mentions(remarks(messages), "5000 labels")
    assert len(_labels(names)) < 100


def test_a_run_on_many_labels_reports_what_it_left_out(here: Path, hftune: Hftune,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(baselines, "MOST_WORK", 1000)
    Path("data").mkdir()
    for split, count in (("train", 120), ("validation", 60), ("test", 60)):
        rows = [(f"label {number % 60}", f"{split} text {number % 60}") for number in range(count)]
        write_csv(Path("data") / f"{split}.csv", rows, ("label", "text"))
    code, out, err = hftune("classify", "--data", "data", "--output", "run", *QUICK)
    assert code == 0, err
    reason = "left out: 120 training rows with 60 labels would take too long"
    assert f"bag of words: {reason}" in out
    found = read_json(Path("run/metrics.json"))["baselines"]
    assert (
        found["tfidf"] == {"validation": {"note": reason}, "test": {"note": reason}}
        and "accuracy" in found["majority"]["validation"]
    )
    assert reason in Path("run/report.html").read_text(encoding="utf-8")
    code, out, err = hftune("baseline", "--data", "data")
    assert code == 0 and f"bag of words: {reason}" in out
    code, out, err = hftune("compare", "run")
    assert code in (0, 2), err


def test_baselines_can_be_switched_off(here: Path, hftune: Hftune) -> None:
    asked: list[str] = []
    for settings, found in (({}, {"majority": {}}), ({"task.baselines": False}, {})):
        recipe = load_recipe(None, settings)
        task: Any = SimpleNamespace(
            recipe=recipe, baselines=lambda data, splits: asked.extend(splits) or {"majority": {}}
        )
        assert Task.scored_baselines(task, None, ["validation"]) == found and asked == ["validation"]
    code, _, err = hftune("baseline", "--data", "reviews", "--set", "task.baselines=false")
    assert code == 2 and "task.baselines" in err
