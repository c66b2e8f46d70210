"""Integer labels with their names in another column: when the names are used, in which order, and when they are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from facts import hftune_error, mentions

from hftune.data.load import load, load_split
from hftune.data.settings import LabeledData
from hftune.data.splits import Splits

NAMES = {0: "very negative", 1: "negative", 2: "neutral", 3: "positive", 4: "very positive"}


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def examples(labels: list[Any], names: dict[Any, Any] | None = None, size: int = 40) -> list[dict[str, Any]]:
    known = names or NAMES
    return [
        {"text": f"t {i}", "label": labels[i % len(labels)], "label_text": known[labels[i % len(labels)]]}
        for i in range(size)
    ]


def splits_of(folder: Path, train: list[dict[str, Any]], test: list[dict[str, Any]] | None = None) -> Splits:
    write(folder / "train.jsonl", train)
    write(folder / "test.jsonl", test or train)
    return load(LabeledData(dataset_name=str(folder)))


def test_names_in_the_order_of_their_integers(tmp_path: Path) -> None:
    splits = splits_of(tmp_path, examples([4, 0, 3, 1, 2]), examples([3, 4]))
    assert splits.labels == tuple(NAMES.values())
    assert splits.test is not None and splits.test["label"][:2] == [3, 4]
    assert mentions(splits.notes, "'label_text'")
    _, rows = load_split(LabeledData(dataset_name=str(tmp_path)), "test", splits.labels)
    assert rows["label"][:2] == [3, 4]


def test_the_columns_of_the_training_run_are_used_where_they_exist(tmp_path: Path) -> None:
    rows = [{"text": "a", "title": "b", "body": "c", "stars": 1, "mark": mark} for mark in ("no", "yes")]
    write(tmp_path / "rows.jsonl", rows)
    trained = LabeledData(
        dataset_name="elsewhere", text_column_name="body", text_pair_column_name="title", label_column_name="mark"
    )

    def columns(trained: LabeledData, **stated: str) -> dict[str, list[Any]]:
        section = LabeledData(dataset_name=str(tmp_path / "rows.jsonl"), **stated)
        return load_split(section, None, ("no", "yes"), trained)[1].to_dict()

    assert columns(trained) == {"text": ["c", "c"], "text_pair": ["b", "b"], "label": [0, 1]}
    assert columns(trained, text_pair_column_name="none") == {"text": ["c", "c"], "label": [0, 1]}
    assert columns(trained, text_column_name="title", text_pair_column_name="none")["text"] == ["b", "b"]
    # boolq-mini names the columns question, passage and answer, and this file has none of them
    other = LabeledData(dataset_name="boolq-mini")
    assert columns(other, label_column_name="mark")["text"] == ["a", "a"]


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([1, 3, 5], {1: "low", 3: "mid", 5: "high"}),
        ([3.0, 1.0], {3.0: "b", 1.0: "a"}),
        (["2", "10"], {"2": "x", "10": "y"}),
    ],
    ids=["gaps", "floats", "digits"],
)
def test_integers_in_other_forms(tmp_path: Path, labels: list[Any], names: dict[Any, str]) -> None:
    ordered = [names[label] for label in sorted(labels, key=float)]
    assert splits_of(tmp_path, examples(labels, names)).labels == tuple(ordered)


def test_a_test_split_without_labels(tmp_path: Path) -> None:
    splits = splits_of(tmp_path, examples([0, 1]), examples([-1], {-1: "unlabeled"}, size=8))
    assert splits.labels == ("very negative", "negative")
    assert splits.test is not None and set(splits.test["label"]) == {-1}


@pytest.mark.parametrize(
    "rows",
    [
        [{"text": f"t {i}", "label": i % 2, "label_text": f"reason {i}"} for i in range(40)],
        [{"text": f"t {i}", "label": i % 3, "label_text": ("a", "b", "b")[i % 3]} for i in range(40)],
        [{"text": f"t {i}", "label": i % 2, "label_text": None} for i in range(40)],
    ],
    ids=["not one name", "one name twice", "no names"],
)
def test_without_a_correspondence_the_integers_stay(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    splits = splits_of(tmp_path, rows)
    assert splits.labels == tuple(sorted({str(row["label"]) for row in rows}))
    assert any(mentions(note, "one to one") for note in splits.notes)


def test_string_labels_keep_their_own_names(tmp_path: Path) -> None:
    assert splits_of(tmp_path, examples(["x", "y"], {"x": "ex", "y": "why"})).labels == ("x", "y")


def test_a_missing_label_of_a_file_is_still_refused(tmp_path: Path) -> None:
    rows = examples([0, 1])
    rows[5]["label"] = None
    with hftune_error("1 row with no label"):
        splits_of(tmp_path, rows)


def test_scores_are_regression_and_whole_floats_are_classes(tmp_path: Path) -> None:
    whole = [{"text": f"t {i}", "label": float(i % 3)} for i in range(40)]
    assert splits_of(tmp_path, whole).labels == ("0", "1", "2")
    with hftune_error("line 2", "1.5", "whole number", "0 to 3") as caught:
        splits_of(tmp_path, [{"text": f"t {i}", "label": (i % 3) * 1.5} for i in range(40)])
    assert mentions(caught.value.hint, "regression", "supported")


def test_a_class_minus_one_is_a_class(tmp_path: Path) -> None:
    names = {-1: "negative", 0: "neutral", 1: "positive"}
    splits = splits_of(tmp_path, examples([1, -1, 0], names), examples([-1], names, size=6))
    assert splits.labels == ("negative", "neutral", "positive")
    assert splits.test is not None and set(splits.test["label"]) == {0}
    hidden = splits_of(tmp_path, examples([1, -1, 0], names), examples([-1], {-1: "unlabeled"}, size=6))
    assert hidden.test is not None and set(hidden.test["label"]) == {-1}


def test_hidden_labels_without_names(tmp_path: Path) -> None:
    hidden = [{"text": f"u {i}", "label": -1, "label_text": None} for i in range(5)]
    splits = splits_of(tmp_path, examples([0, 1, 2, 3, 4]), hidden)
    assert splits.labels == tuple(NAMES.values()) and splits.test is not None
    assert set(splits.test["label"][:]) == {-1}
