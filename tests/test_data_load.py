"""Loading: every format and place, columns, label order, made splits, subsets, fingerprints."""

from __future__ import annotations

import csv
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from facts import mentions

from hftune.data.columns import find_unlabeled
from hftune.data.load import load
from hftune.data.settings import LabeledData
from hftune.data.splits import Splits

WORDS = ("good", "bad", "plain")


def rows_of(count: int, labels: tuple[Any, ...] = ("neg", "pos"), tag: str = "row") -> list[dict[str, Any]]:
    return [{"text": f"{tag} {i} is {WORDS[i % 3]}, they say", "label": labels[i % len(labels)]} for i in range(count)]


def write_csv(path: Path, rows: list[dict[str, Any]], delimiter: str = ",", header: bool = True) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        if header:
            writer.writerow(rows[0])
        writer.writerows(list(row.values()) for row in rows)


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def read(path: Path | str, **options: Any) -> Splits:
    return load(LabeledData(dataset_name=str(path), **options))


def names(splits: Splits, split: str = "train") -> list[str]:
    return [splits.labels[label] for label in splits.named[split]["label"]]


def gathered(splits: Splits) -> dict[str, str]:
    """Every row of every split: text → label name."""
    return {
        text: name
        for split, rows in splits.named.items()
        for text, name in zip(rows["text"], names(splits, split), strict=True)
    }


@pytest.mark.parametrize("ending", ["csv", "tsv", "json", "jsonl", "parquet", "txt"])
def test_each_format_gives_the_same_rows(tmp_path: Path, ending: str) -> None:
    rows = rows_of(40)
    path = tmp_path / f"mine.{ending}"
    if ending in ("csv", "tsv"):
        write_csv(path, rows, "," if ending == "csv" else "\t")
    elif ending == "json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif ending == "jsonl":
        write_jsonl(path, rows)
    elif ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(f"__label__{row['label']}\t{row['text']}\n" for row in rows), encoding="utf-8")
    splits = read(path)
    assert splits.labels == ("neg", "pos")
    assert gathered(splits) == {row["text"]: row["label"] for row in rows}
    assert splits.train.column_names == ["text", "label"]
    assert not splits.is_pair
    assert (len(splits.train), len(splits.validation), len(splits.named["test"])) == (32, 4, 4)
    if ending == "csv":
        return
    write_csv(tmp_path / "same.csv", rows)
    assert read(tmp_path / "same.csv").fingerprints == splits.fingerprints


def test_headerless_stars_with_written_line_breaks(tmp_path: Path) -> None:
    path = tmp_path / "stars.csv"
    more = "".join(f"3,fine {i}\n" for i in range(20))
    path.write_text('5,"Great, really.\\nCome ""again""."\n1,NA\n2,null\n' + more, encoding="utf-8")
    splits = read(path, validation_size=0.2)
    found = gathered(splits)
    assert splits.labels == ("1", "2", "3", "5")
    assert found['Great, really.\nCome "again".'] == "5"
    assert found["NA"] == "1"
    assert found["null"] == "2"


def test_fasttext_takes_a_space_and_a_dash_of_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "ft.txt"
    more = "".join(f"__label__9 more {i}\n" for i in range(9))
    path.write_text("__label__10 one two\n\n__label__9\tthree\tfour\r\n" + more, encoding="utf-8")
    splits = read(path, test_size=0)
    assert splits.labels == ("9", "10")
    assert {"one two", "three\tfour", "more 0"} <= set(gathered(splits))
    assert splits.test is None


def test_byte_order_mark_and_windows_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "windows.csv"
    path.write_bytes(b"\xef\xbb\xbftext,label\r\n" + b"".join(b"row %d,%d\r\n" % (i, i % 2) for i in range(20)))
    assert gathered(read(path))["row 3"] == "1"


def test_tsv_with_bare_quotes_loses_no_row(tmp_path: Path) -> None:
    path = tmp_path / "bare.tsv"
    path.write_text('sentence\tlabel\n"open\t1\nclose"\t0\nplain\t1\nother\t0\n' + "x\t0\ny\t1\n", encoding="utf-8")
    splits = read(path, test_size=0, validation_size=0.2)
    assert gathered(splits) == {'"open': "1", 'close"': "0", "plain": "1", "other": "0", "x": "0", "y": "1"}


def test_tsv_with_quoted_cells_is_unquoted(tmp_path: Path) -> None:
    path = tmp_path / "quoted.tsv"
    path.write_text('text\tlabel\n"a ""b"" c"\t1\n"two\nlines"\t0\nd\t1\ne\t0\n', encoding="utf-8")
    assert set(gathered(read(path, test_size=0, validation_size=0.2))) == {'a "b" c', "two\nlines", "d", "e"}


def test_a_text_over_the_csv_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    write_csv(path, [*rows_of(10), {"text": "x" * 10_000_000, "label": "pos"}])
    before = csv.field_size_limit()
    assert max(len(text) for text in gathered(read(path))) == 10_000_000
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    "stems", [("sst_train", "sst_dev", "sst_test"), ("train", "validation", "test"), ("my-train", "valid.v2", "TEST")]
)
def test_splits_are_recognized_by_the_names_of_the_files(tmp_path: Path, stems: tuple[str, str, str]) -> None:
    for stem, size in zip(stems, (20, 6, 8), strict=True):
        write_csv(tmp_path / f"{stem}.csv", rows_of(size, tag=stem))
    (tmp_path / "train_unlabeled.txt").write_text("no label here\n", encoding="utf-8")
    (tmp_path / "README.md").write_text("train validation test", encoding="utf-8")
    splits = read(tmp_path)
    assert (len(splits.train), len(splits.validation), len(splits.named["test"])) == (20, 6, 8)
    assert splits.notes == ()
    assert splits.validation["text"][0].startswith(stems[1])


def test_shards_of_one_split_are_joined(tmp_path: Path) -> None:
    for shard in range(2):
        pq.write_table(
            pa.Table.from_pylist(rows_of(10, tag=f"s{shard}")), tmp_path / f"train-0000{shard}-of-00002.parquet"
        )
    assert len(gathered(read(tmp_path))) == 20


def test_split_files_can_be_named(tmp_path: Path) -> None:
    for stem in ("a", "b", "c"):
        write_csv(tmp_path / f"{stem}.csv", rows_of(10, tag=stem))
    splits = read(tmp_path, train_file="b.csv", validation_file="c.csv", test_file="a.csv")
    assert [splits.named[s]["text"][0][0] for s in ("train", "validation", "test")] == ["b", "c", "a"]
    beside = read(tmp_path / "a.csv", validation_file="b.csv", test_file=str(tmp_path / "c.csv"))
    assert [beside.named[s]["text"][0][0] for s in ("train", "validation", "test")] == ["a", "b", "c"]


def test_pairs_are_found_named_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "boolq.jsonl"
    rows = [
        {"question": f"is {i} even", "title": "Numbers", "passage": f"about {i}", "answer": i % 2 == 0}
        for i in range(20)
    ]
    write_jsonl(path, rows)
    splits = read(path)
    assert splits.is_pair
    assert splits.train.column_names == ["text", "text_pair", "label"]
    assert splits.labels == ("false", "true")
    for row in splits.train:
        number = int(row["text"].split()[1])
        assert row["text_pair"] == f"about {number}"
        assert row["label"] == (number % 2 == 0)
    swapped = read(path, text_column_name="passage", text_pair_column_name="question")
    assert swapped.train["text"][0].startswith("about")
    assert swapped.train["text_pair"][0].startswith("is ")
    single = read(path, text_pair_column_name="none")
    assert single.train.column_names == ["text", "label"]
    assert single.train["text"][0].startswith("is ")
    assert not read(path, text_column_name="passage").is_pair


def test_named_columns_win_over_found_ones(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    write_csv(path, [{"id": i, "Text": f"t{i}", "note": f"n{i}", "label": "x", "mood": i % 2} for i in range(20)])
    splits = read(path, text_column_name="note", label_column_name="mood")
    assert gathered(splits)["n3"] == "1"
    found = read(path, label_column_name="mood")
    assert gathered(found)["t3"] == "1"


@pytest.mark.parametrize(
    ("values", "order"),
    [
        ((10, 9, -1), ("-1", "9", "10")),
        ((True, False), ("false", "true")),
        (("b", "a", "C"), ("C", "a", "b")),
        (("10", "9", "2"), ("2", "9", "10")),
        (("4.0", "10.0", "-1"), ("-1", "4.0", "10.0")),
        ((1.0, 2.0), ("1", "2")),
        ((" pos ", "pos", "neg"), ("neg", "pos")),
    ],
)
def test_labels_have_one_order(tmp_path: Path, values: tuple[Any, ...], order: tuple[str, ...]) -> None:
    write_jsonl(tmp_path / "train.jsonl", rows_of(30, values))
    write_jsonl(tmp_path / "dev.jsonl", rows_of(1, values[:1], tag="validation"))
    write_jsonl(tmp_path / "test.jsonl", rows_of(1, values[-1:], tag="test"))
    splits = read(tmp_path)
    assert splits.labels == order
    assert names(splits, "test") == [order[splits.named["test"]["label"][0]]]


def test_class_names_in_parquet_keep_their_order(tmp_path: Path) -> None:
    features = Features({"text": Value("string"), "label": ClassLabel(names=["worse", "better", "absent"])})
    made = Dataset.from_list(rows_of(30, (1, 0)), features=features)
    made.to_parquet(tmp_path / "train.parquet")
    splits = read(tmp_path / "train.parquet")
    assert splits.labels == ("worse", "better", "absent")
    assert gathered(splits)["row 0 is good, they say"] == "better"


def test_rows_marked_unlabeled_by_their_classes_are_left_out(tmp_path: Path) -> None:
    features = Features({"text": Value("string"), "label": ClassLabel(names=["no", "yes"])})
    Dataset.from_list(rows_of(30, (0, 1, -1)), features=features).to_parquet(tmp_path / "train.parquet")
    splits = read(tmp_path)
    assert len(gathered(splits)) == 20
    assert any("10 rows" in note and "unlabeled" in note for note in splits.notes)


@pytest.mark.parametrize("how", ["column missing", "empty", "minus one"])
def test_a_test_split_may_have_no_labels(tmp_path: Path, how: str) -> None:
    write_jsonl(tmp_path / "train.jsonl", rows_of(20, (0, 1)))
    rows = rows_of(5, (-1 if how == "minus one" else None,), tag="test")
    if how == "column missing":
        rows = [{"text": row["text"]} for row in rows]
    write_jsonl(tmp_path / "test.jsonl", rows)
    splits = read(tmp_path)
    assert list(splits.named["test"]["label"]) == [-1] * 5
    assert splits.labels == ("0", "1")
    assert mentions(splits.notes, "test", "predictions", "scores")


def test_made_splits_are_stratified_seeded_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    write_jsonl(path, rows_of(400, ("a", "a", "a", "b")))
    splits = read(path, validation_size=0.1, test_size=0.2)
    assert Counter(names(splits, "validation")) == {"a": 30, "b": 10}
    assert Counter(names(splits, "test")) == {"a": 60, "b": 20}
    assert len(gathered(splits)) == 400
    assert mentions(splits.notes, "validation", "train: 40 rows", "seed 0")
    again = read(path, validation_size=0.1, test_size=0.2)
    assert again.fingerprints == splits.fingerprints
    other = read(path, validation_size=0.1, test_size=0.2, split_seed=1)
    assert all(other.fingerprints[split] != splits.fingerprints[split] for split in splits.fingerprints)


def test_made_splits_share_no_text_and_leave_each_label_in_train(tmp_path: Path) -> None:
    path = tmp_path / "twice.jsonl"
    rows = rows_of(100) * 3 + [{"text": "only one of these", "label": "rare"}]
    write_jsonl(path, [*rows, {"text": "torn", "label": "pos"}, {"text": "torn", "label": "neg"}])
    splits = read(path, validation_size=0.3, test_size=0.3)
    texts = [set(rows["text"]) for rows in splits.named.values()]
    assert not texts[0] & texts[1] and not texts[0] & texts[2] and not texts[1] & texts[2]
    assert set(names(splits)) == {"neg", "pos", "rare"}
    assert list(splits.train["text"]).count("torn") == 2
    assert sum(len(rows) for rows in splits.named.values()) == 303


def test_given_splits_are_never_touched(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", rows_of(100))
    write_jsonl(tmp_path / "dev.jsonl", rows_of(30, tag="validation"))
    write_jsonl(tmp_path / "test.jsonl", rows_of(30, tag="test"))
    whole = read(tmp_path)
    few = read(tmp_path, max_train_samples=10, split_seed=7)
    assert list(whole.train["text"]) == [row["text"] for row in rows_of(100)]
    assert [whole.fingerprints[s] == few.fingerprints[s] for s in ("train", "validation", "test")] == [
        False,
        True,
        True,
    ]


def test_subsets_are_nested_stratified_and_seeded(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", rows_of(1000, ("a",) * 7 + ("b",) * 2 + ("c",)) + rows_of(1, ("rare",)))
    write_jsonl(tmp_path / "dev.jsonl", rows_of(20, ("a", "b"), tag="validation"))
    write_jsonl(tmp_path / "test.jsonl", rows_of(20, ("a", "b"), tag="test"))
    sizes = (2, 4, 50, 51, 500, 1001)
    loaded = [read(tmp_path, max_train_samples=size) for size in sizes]
    assert [len(splits.train) for splits in loaded] == list(sizes)
    taken = [set(zip(splits.train["text"], splits.train["label"], strict=True)) for splits in loaded]
    assert all(small <= large for small, large in pairwise(taken))
    assert set(names(loaded[1])) == {"a", "b", "c", "rare"}
    counts = Counter(names(loaded[4]))
    assert all(abs(counts[label] - share * 500) <= 1 for label, share in (("a", 0.7), ("b", 0.2), ("c", 0.1)))
    assert loaded[0].labels == loaded[-1].labels == ("a", "b", "c", "rare")
    assert read(tmp_path, max_train_samples=50, split_seed=3).fingerprints["train"] != loaded[2].fingerprints["train"]
    assert mentions(loaded[2].notes, "train", "50 of 1,001 rows", "seed 0")
    assert mentions(loaded[0].notes, "2 training rows", "4 labels")


def test_a_subset_does_not_move_the_made_splits(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "mine.jsonl", rows_of(200))
    whole, few = read(tmp_path), read(tmp_path, max_train_samples=20)
    assert whole.fingerprints["validation"] == few.fingerprints["validation"]
    assert whole.fingerprints["test"] == few.fingerprints["test"]
    assert set(few.train["text"]) < set(whole.train["text"])


def test_fingerprints_follow_content_alone(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write_jsonl(tmp_path / folder / "mine.jsonl", rows_of(20))
    one = read(tmp_path / "one")
    assert one.fingerprints == read(tmp_path / "two" / "mine.jsonl").fingerprints
    assert one.fingerprints["train"][:12] == "a91aa626f116"  # the same on every machine
    write_jsonl(tmp_path / "two" / "mine.jsonl", rows_of(20, ("neg", "poz")))
    assert one.fingerprints["validation"] != read(tmp_path / "two").fingerprints["validation"]


def test_blank_rows_are_left_out_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "blank.csv"
    write_csv(path, [*rows_of(20), {"text": " ", "label": ""}])
    splits = read(path)
    assert len(gathered(splits)) == 20
    assert splits.notes[0] == "blank.csv: 1 row with no text and no label left out"


@pytest.mark.parametrize(
    ("names", "section", "found"),
    [
        ("question title passage answer", {}, ("question", "passage")),
        ("id Premise Hypothesis", {}, ("Premise", "Hypothesis")),
        ("text", {}, ("text", None)),
        ("text text_pair label", {}, ("text", "text_pair")),
        ("text question passage", {}, ("text", None)),
        ("headline text", {"text_column_name": "headline"}, ("headline", None)),
        (
            "old new",
            {"text_column_name": "old", "text_pair_column_name": "new", "label_column_name": "gone"},
            ("old", "new"),
        ),
        ("text text_pair", {"text_column_name": "old", "text_pair_column_name": "new"}, ("text", "text_pair")),
        ("question passage", {"text_pair_column_name": "none"}, ("question", None)),
        ("answer id", {"text_column_name": "answer"}, ("answer", None)),
        ("one two", {}, (None, None)),
    ],
)
def test_the_texts_of_rows_that_have_no_label(
    names: str, section: dict[str, str], found: tuple[str | None, ...]
) -> None:
    assert find_unlabeled(names.split(), LabeledData(**section)) == found
