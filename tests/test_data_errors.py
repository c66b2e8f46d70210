"""Bad input: each case ends in an HftuneError with what is wrong, where, and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from facts import hftune_error, mentions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hftune.data.corpus import load_texts, stream_corpus
from hftune.data.load import load
from hftune.data.questions import load_questions
from hftune.data.settings import CorpusData, LabeledData, QuestionData
from hftune.errors import HftuneError
from hftune.recipe import load_recipe

GOOD = b"text,label\n" + b"".join(b"row %d,%s\n" % (i, (b"no", b"yes")[i % 2]) for i in range(20))


def refused(path: Path | str, **options: Any) -> HftuneError:
    with pytest.raises(HftuneError) as caught:
        load(LabeledData(dataset_name=str(path), **options))
    assert caught.value.exit_code == 2
    assert caught.value.hint
    return caught.value


def with_bytes(folder: Path, content: bytes, name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ["'rows.csv' is empty"]),
        (b"\xef\xbb\xbf \n\n", ["'rows.csv' is empty"]),
        (b"text,label\n", ["'rows.csv'", "header", "no rows"]),
        (b'""\n""\n', ["'rows.csv' has no rows"]),
        (b"text,label\nok,yes\ncaf\xe9,no\n", ["UTF-8", "0xe9", "offset 21", "line 3"]),
        (b"\xef\xbb\xbftext,label\n\xff,no\n", ["UTF-8", "0xff", "offset 14", "line 2"]),
        ("text,label\n".encode("utf-16"), ["'rows.csv' is UTF-16, not UTF-8"]),
        (b"text,label\na\0b,yes\n", ["NUL byte", "offset 12", "line 2"]),
        (b"PAR1 and so on", ["binary", "parquet"]),
        (b"\x1f\x8b\x08\x00", ["binary", "gzip"]),
        (b"\x80\x04\x95.", ["binary", "pickle"]),
        (b"text,label\na,yes\nb,no,more\n", ["line 3", "2 columns", 3]),
        (b'text,label\n"two\nlines",yes\nb\n', ["line 4", "2 columns", 1]),
        (b'text,label\na,yes\n"open,no\nb,yes\n', ["line 3"]),
        (b"text,label,text\na,b,c\n", ["two columns", "'text'"]),
        (b"5,good\n3,fine\nfour\n", ["line 3", "2 columns", 1]),
        (b"one,two,three\na,b,c\n", ["label", "'one', 'two', 'three'"]),
        (b"one,two,label\na,b,c\n", ["text", "'one', 'two', 'label'"]),
        (b"text,label\na,yes\n,no\n \t,no\n", ["2 rows", "'text'", "line 3, line 4"]),
        (b"text,label\na,yes\nb,\n", ["1 row", "'label'", "line 3"]),
        (b"text,label\n,\n,\n", ["'rows.csv'", "no rows"]),
        (b"text,label\na,yes\nb,yes\n", ["'rows.csv'", "one label", "'yes'"]),
        (b"text,label\na,yes\nb,no\n", ["'rows.csv'", 2, "test"]),
    ],
)
def test_a_bad_csv_is_refused_with_the_place(tmp_path: Path, content: bytes, message: list[str | int]) -> None:
    assert mentions(refused(with_bytes(tmp_path, content)).message, *message)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.jsonl", b'{"text": "a", "label": 1}\n{"text": \n', ["line 2: not valid JSON"]),
        ("rows.jsonl", b'{"text": "a", "label": 1}\n[1]\n', ["line 2", "object"]),
        ("rows.jsonl", b'{"text": "a", "text": "b", "label": 1}\n', ["line 1", "JSON", "key"]),
        ("rows.jsonl", b'{"text": "a", "label": ["x", "y"]}\n', ["line 1", "one label", "['x', 'y']"]),
        ("rows.jsonl", b'{"text": "a", "label": 1}\n{"text": "b", "label": "x"}\n', ["several kinds: int, str"]),
        ("rows.jsonl", b'{"text": "a", "label": 0.5}\n', ["line 1", "0.5", "whole number"]),
        ("rows.jsonl", b'{"text": "a", "label": 1}\n{"text": 7, "label": 2}\n', ["line 2", "text"]),
        ("rows.jsonl", b'{"text": "a\\ud800", "label": 1}\n', ["line 1", "text", "surrogate"]),
        ("rows.jsonl", b'{"text": "a", "label": "\\ud800"}\n', ["line 1", "label", "'\\ud800'"]),
        ("rows.jsonl", b"[" * 100_000 + b"\n", ["line 1", "JSON", "recursion"]),
        ("rows.jsonl", b'{"text": "a", "label": ' + b"9" * 5000 + b"}\n", ["line 1", "JSON", "limit"]),
        (
            "rows.jsonl",
            b'{"text": "a", "text_pair": " ", "label": 1}\n',
            ["1 row", "'text_pair'", "line 1"],
        ),
        ("rows.json", b"[]", ["header", "no rows"]),
        ("rows.json", b"[1, 2]", ["row 1", "object"]),
        ("rows.json", b"nonsense", ["not valid JSON"]),
        ("rows.txt", b"__label__1\tgood\nno label\n", ["line 2: expected one `__label__N`"]),
        ("rows.txt", b"__label__1 __label__2 good\n", ["line 1: expected one `__label__N`"]),
        ("rows.txt", b"__label__\tgood\n__label__1\tbad\n", ["1 row", "'label'", "line 1"]),
        ("rows.parquet", b"PAR1 but no more", ["parquet"]),
        ("rows.xls", b"\xd0\xcf\x11\xe0", ["unknown ending: '.xls'"]),
        ("rows.xlsx", b"PK\x03\x04", ["rows.xlsx", "Excel"]),
        ("rows.tsv", b"text\tlabel\na\tyes\nb\n", ["line 3: expected 2 columns"]),
    ],
)
def test_other_formats_are_refused_with_the_place(
    tmp_path: Path, name: str, content: bytes, message: list[str | int]
) -> None:
    assert mentions(refused(with_bytes(tmp_path, content, name)).message, *message)


def test_parquet_columns_of_one_name(tmp_path: Path) -> None:
    column = pa.array(["a", "b"])
    pq.write_table(pa.Table.from_arrays([column, column], names=["text", "text"]), tmp_path / "rows.parquet")
    assert mentions(refused(tmp_path / "rows.parquet").message, "two columns", "'text'")


def test_a_wrong_column_lists_those_there_are(tmp_path: Path) -> None:
    error = refused(with_bytes(tmp_path, GOOD), text_column_name="txt")
    assert mentions(error.message, "'txt'", "'text', 'label'")
    assert mentions(error.hint, "mean 'text'")
    assert "data.text_column_name" in error.hint
    assert "no column 'passage'" in refused(tmp_path / "rows.csv", text_pair_column_name="passage").message
    assert "no column 'lable'" in refused(tmp_path / "rows.csv", label_column_name="lable").message
    twice = refused(tmp_path / "rows.csv", text_column_name="label")
    assert mentions(twice.message, "'rows.csv'", "twice")


def test_validation_and_test_must_fit_train(tmp_path: Path) -> None:
    with_bytes(tmp_path, GOOD, "train.csv")
    with_bytes(tmp_path, b"text,label\na,yess\nb,no\n", "dev.csv")
    error = refused(tmp_path)
    assert mentions(error.message, "'dev.csv'", "'yess' (1 row)", "'no', 'yes'")
    assert mentions(error.hint, "mean 'yes'")
    with_bytes(tmp_path, b"text\na\n", "dev.csv")
    assert mentions(refused(tmp_path).message, "'dev.csv'", "'label'")
    (tmp_path / "dev.csv").unlink()
    with_bytes(tmp_path, b"text,labels\na,yes\n", "test.csv")
    assert mentions(refused(tmp_path).message, "'label' in train", "'labels' in 'test.csv'")
    with_bytes(tmp_path, b"text,label\na,yes\nb,\n", "test.csv")
    assert mentions(refused(tmp_path).message, "1 row with no label")
    with_bytes(tmp_path, b"text,label\na,maybe\n", "test.csv")
    assert mentions(refused(tmp_path).message, "'test.csv'", "'maybe'")


def test_a_missing_file_names_its_sibling(tmp_path: Path) -> None:
    with_bytes(tmp_path, GOOD, "reviews_2024.csv")
    error = refused(tmp_path / "reviews_2042.csv")
    assert mentions(error.message, "no file or folder")
    assert "'reviews_2024.csv'" in error.hint
    assert mentions(refused(tmp_path / "nowhere" / "rows.csv").hint, "does not exist")
    assert "'dev2.csv'" in refused(tmp_path / "reviews_2024.csv", validation_file="dev2.csv").message
    assert "already" in refused(tmp_path / "reviews_2024.csv", train_file="reviews_2024.csv").message


def test_a_folder_whose_file_names_show_no_splits(tmp_path: Path) -> None:
    assert mentions(refused(tmp_path).message, "training file", "nothing")
    with_bytes(tmp_path, GOOD, "one.csv")
    with_bytes(tmp_path, GOOD, "two.csv")
    assert "it holds 'one.csv', 'two.csv'" in refused(tmp_path).message
    with_bytes(tmp_path, GOOD, "big_train.csv")
    with_bytes(tmp_path, GOOD, "small_train.csv")
    error = refused(tmp_path)
    assert mentions(error.message, "train", "'big_train.csv', 'small_train.csv'")
    assert "data.train_file=FILE" in error.hint
    missing = refused(tmp_path, train_file="tow.csv")
    assert "'two.csv'" in missing.hint


@pytest.mark.posix("makes symbolic links")
def test_nothing_outside_a_folder_is_read_through_it(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    secret = with_bytes(tmp_path, GOOD, "secret.csv")
    assert "../secret.csv" in refused(inside, train_file="../secret.csv").message
    assert mentions(refused(inside, train_file=str(secret)).message, "data folder")
    (inside / "train.csv").symlink_to(secret)
    assert mentions(refused(inside).message, "'train.csv'", "data folder 'inside'")
    (inside / "train.csv").unlink()
    (inside / "train.csv").symlink_to("train.csv")
    assert "outside the data folder" in refused(inside).message
    (inside / "train.csv").unlink()
    with_bytes(inside, GOOD, "rows.csv")
    (inside / "train.csv").symlink_to("rows.csv")
    assert len(load(LabeledData(dataset_name=str(inside))).train) == 16


@pytest.mark.parametrize("name", ["", "a\0b", "~nobody-has-this-name/x.csv", "x" * 5000, "../../up/there", "a/b/c"])
def test_names_that_lead_nowhere(name: str) -> None:
    refused(name)


def test_an_embedded_text_has_no_labels() -> None:
    with hftune_error("prose", "without labels") as caught:
        load(LabeledData(dataset_name="prose"))
    assert "hftune pretrain --corpus prose" in caught.value.hint and "reviews" in caught.value.hint


def test_more_labels_than_rows(tmp_path: Path) -> None:
    path = with_bytes(tmp_path, GOOD)
    assert mentions(refused(path, max_train_samples=17).message, "data.max_train_samples", 17, 16)
    assert len(load(LabeledData(dataset_name=str(path), max_train_samples=16)).train) == 16
    assert mentions(refused(path, max_train_samples=1).message, "data.max_train_samples", 1)
    assert mentions(refused(path, validation_size=0.6, test_size=0.4).message, "all of train")


def test_sizes_of_splits_that_exist_already_are_refused(tmp_path: Path) -> None:
    for split in ("train", "validation", "test"):
        with_bytes(tmp_path, GOOD, f"{split}.csv")
    for name, split in (("validation_size", "validation"), ("test_size", "test")):
        assert mentions(refused(tmp_path, **{name: 0.3}).message, f"data.{name}", "0.3", f"{split} split")
    assert "data.split_seed is 7" in refused(tmp_path, split_seed=7).message
    assert len(load(LabeledData(dataset_name=str(tmp_path), split_seed=7, max_eval_samples=4)).validation) == 4
    assert len(load(LabeledData(dataset_name=str(tmp_path), test_size=0)).train) == 20, "0 makes no split"
    section = LabeledData(dataset_name=str(tmp_path))
    assert len(load(LabeledData(**section.model_dump())).train) == 20, "a resolved recipe states every default"
    for kind in (stream_corpus, load_texts):
        with hftune_error("data.validation_size", "0.3", "validation split"):
            kind(CorpusData(dataset_name="prose", validation_size=0.3))
    with hftune_error("data.split_seed", 7):
        stream_corpus(CorpusData(dataset_name="prose", validation_size=0.0, split_seed=7))
    for settings_ in ({"validation_size": 0.3}, {"split_seed": 7}):
        with hftune_error(f"data.{next(iter(settings_))}"):
            load_questions(QuestionData(**settings_))


@pytest.mark.parametrize(("task", "data"), [("clm", "prose"), ("span", "prose"), ("mlm", "reviews")])
def test_a_resolved_corpus_recipe_with_a_default_size_is_read_again(task: str, data: str) -> None:
    model = "scratch:mingpt-tiny" if task != "mlm" else "scratch:bert-tiny"
    recipe = load_recipe(None, {"data.dataset_name": data, "model.model_name_or_path": model}, task=task)
    again = type(recipe).model_validate(recipe.model_dump())
    assert again == recipe and stream_corpus(again.data).facts["validation"].documents
    stated = load_recipe(
        None,
        {"data.dataset_name": data, "model.model_name_or_path": model, "data.validation_size": 0.3},
        task=task,
    )
    with hftune_error("validation_size", "0.3"):
        stream_corpus(stated.data)


def test_hub_options_on_a_file_are_not_ignored(tmp_path: Path) -> None:
    path = with_bytes(tmp_path, GOOD)
    assert "data.dataset_config_name is 'x'" in refused(path, dataset_config_name="x").message
    assert "data.dataset_revision is 'main'" in refused(path, dataset_revision="main").message


def test_messages_hold_no_control_characters(tmp_path: Path) -> None:
    path = with_bytes(tmp_path, b"\x1b[31mred,\x07bell,x\nb,c,d\n")
    assert "\x1b" not in str(refused(path)) and "\x07" not in str(refused(path))
    path = with_bytes(tmp_path, GOOD + b"evil,\x1b]0;title\x07\n")
    validation = with_bytes(tmp_path, b"text,label\na,\x1b[2J\n", "dev.csv")
    assert "\x1b" not in str(refused(path, validation_file=str(validation)))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ending=st.sampled_from(["csv", "tsv", "json", "jsonl", "txt", "parquet"]),
    edits=st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=6)), max_size=6),
    cut=st.integers(0, 400),
)
def test_mutated_files_end_in_rows_or_in_our_error(tmp_path: Path, ending: str, edits: Any, cut: int) -> None:
    rows = [{"text": f'row "{i}", and', "label": ("no", "yes")[i % 2]} for i in range(12)]
    path = tmp_path / f"rows.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        content = path.read_bytes()
    else:
        text = {
            "csv": GOOD.decode(),
            "tsv": GOOD.decode().replace(",", "\t"),
            "json": json.dumps(rows),
            "jsonl": "\n".join(json.dumps(row) for row in rows),
            "txt": "\n".join(f"__label__{row['label']} {row['text']}" for row in rows),
        }[ending]
        content = text.encode()
    for place, replacement in edits:
        at = place % max(1, len(content))
        content = content[:at] + replacement + content[at + len(replacement) // 2 :]
    path.write_bytes(content[: len(content) - cut] if cut < 60 else content)
    try:
        splits = load(LabeledData(dataset_name=str(path)))
    except HftuneError as error:
        assert error.hint
    else:
        assert all(text.strip() for rows in splits.named.values() for text in rows["text"])


def test_scores_in_a_csv_file_are_no_classes(tmp_path: Path) -> None:
    """A csv file knows no types: 0.5 is a text there, as "good" is."""
    (tmp_path / "d.csv").write_text("text,label\n" + "".join(f"text {n},{n / 2}\n" for n in range(20)))
    with pytest.raises(HftuneError, match="regression"):
        load(LabeledData(dataset_name=str(tmp_path / "d.csv")))
