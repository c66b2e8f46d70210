"""Thousands of mutated data files: each ends in rows or in our error, never in another exception."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutation import Edit, edited, edits, examples, survives, turned, turns

from hftune.cli import generate, predict
from hftune.data.checks import check
from hftune.data.corpus import lines_of, load_texts, stream_corpus, unescaped
from hftune.data.load import load, load_split
from hftune.data.questions import load_question_split, load_questions
from hftune.data.settings import CorpusData, LabeledData, QuestionData
from hftune.data.tables import NO_SETTINGS

ROWS: list[dict[str, Any]] = [
    {"text": f'row "{number}", and more of it', "label": ("no", "yes")[number % 2]} for number in range(14)
]
PAIRS: list[dict[str, Any]] = [{**row, "text_pair": f"was it {index}?"} for index, row in enumerate(ROWS)]
HOME = Path(tempfile.mkdtemp(prefix="hftune-mutated-"))


def parquet(rows: list[dict[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def delimited(rows: list[dict[str, Any]], mark: str) -> bytes:
    cells = [list(rows[0]), *([value.replace('"', '""') for value in row.values()] for row in rows)]
    return "".join(mark.join(f'"{cell}"' for cell in line) + "\n" for line in cells).encode()


def lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


LABELED: dict[str, bytes] = {
    "rows.csv": delimited(ROWS, ","),
    "plain.csv": b"".join(f"{number % 2},row {number}\\n twice\n".encode() for number in range(14)),
    "rows.tsv": delimited(PAIRS, "\t"),
    "rows.json": json.dumps({"data": ROWS}).encode(),
    "rows.jsonl": lines(PAIRS),
    "rows.parquet": parquet(ROWS),
    "rows.txt": "".join(f"__label__{row['label']}\t{row['text']}\n" for row in ROWS).encode(),
}
TEXTS: dict[str, bytes] = {
    "corpus.txt": "".join(f"{row['text']}\n\n" * 2 for row in ROWS).encode(),
    "corpus.jsonl": lines(ROWS),
    "corpus.parquet": parquet(ROWS),
}
ASKED = "".join(f"Where was {name} born?\t{town}\n" for name, town in (("Ann", "Rome"), ("Bo", "Oslo")) * 4).encode()


def written(name: str, content: bytes) -> Path:
    path = HOME / name
    path.write_bytes(content)
    return path


def labeled(path: Path) -> None:
    splits = load(LabeledData(dataset_name=str(path)))
    for rows in splits.named.values():
        assert all(text.strip() for text in rows["text"])
    check(splits, 8)


def text(path: Path) -> None:
    corpus = load_texts(CorpusData(dataset_name=str(path), validation_size=0.2))
    assert all(isinstance(one, str) and one.strip() for part in corpus.named.values() for one in part)


def stream(path: Path) -> None:
    corpus = stream_corpus(CorpusData(dataset_name=str(path), validation_size=0.2))
    assert all(isinstance(one, str) for split in corpus.named.values() for one in split.texts())


def questions(path: Path) -> None:
    splits = load_questions(QuestionData(dataset_name=str(path)))
    assert len(splits.train.questions) == len(splits.train.required_answers)


@pytest.mark.parametrize("name", LABELED)
@examples(110)
@given(changes=edits)
def test_labeled_files(name: str, changes: list[Edit]) -> None:
    path = written(name, edited(LABELED[name], changes))
    survives(lambda: labeled(path))
    survives(lambda: load_split(LabeledData(dataset_name=str(path)), None, ("no", "yes")))


@examples(250)
@given(changes=turns, pairs=st.booleans(), ending=st.sampled_from(["json", "jsonl", "parquet"]))
def test_labeled_values(changes: list[tuple[float, Any]], pairs: bool, ending: str) -> None:
    rows = [row for row in turned(PAIRS if pairs else ROWS, changes) if isinstance(row, dict) or ending != "parquet"]
    try:
        content = {
            "json": lambda: json.dumps(rows).encode(),
            "jsonl": lambda: lines(rows),
            "parquet": lambda: parquet(rows),
        }
        made = content[ending]()
    except (pa.ArrowException, UnicodeEncodeError, OverflowError):
        return  # parquet itself can't hold it
    path = written(f"values.{ending}", made)
    survives(lambda: labeled(path))


@pytest.mark.parametrize("read", [text, stream])
@pytest.mark.parametrize("name", TEXTS)
@examples(60)
@given(changes=edits)
def test_texts(name: str, read: Callable[[Path], None], changes: list[Edit]) -> None:
    path = written(name, edited(TEXTS[name], changes))
    survives(lambda: read(path))
    survives(lambda: unescaped(lines_of(path)))


@examples(200)
@given(changes=edits)
def test_questions(changes: list[Edit]) -> None:
    path = written("asked.tsv", edited(ASKED, changes))
    survives(lambda: questions(path))
    survives(lambda: load_question_split(QuestionData(dataset_name=str(path)), None))


@examples(300)
@given(changes=edits, ending=st.sampled_from(["txt", "jsonl"]))
def test_files_of_predict_and_generate(changes: list[Edit], ending: str) -> None:
    prompts = lines([{"text": "a", "text_pair": "b", "prompt": "c"}] * 4)
    path = written(f"asked.{ending}", edited(prompts if ending == "jsonl" else b"one\ntwo\nthree\n", changes))
    rows = survives(lambda: list(predict._rows("nobody/nothing", "classify", None, None, path, NO_SETTINGS)))
    assert rows is None or all(isinstance(value, str) for row in rows for value in row.values())
    found = survives(lambda: list(generate._from_file(path)))
    assert found is None or all(isinstance(prompt, str) for prompt in found)


@examples(200)
@given(
    names=st.lists(
        st.sampled_from(["train", "validation", "test", "a", "..", "x y", "-", "\x1b", "é", "train-0", "_"]), max_size=4
    )
)
def test_folders(names: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = Path(tempfile.mkdtemp(dir=HOME))
    for index, name in enumerate(names):
        if name != "..":
            (folder / f"{name}.{'csv' if index % 2 else 'jsonl'}").write_bytes(
                LABELED["rows.csv" if index % 2 else "rows.jsonl"]
            )
    survives(lambda: load(LabeledData(dataset_name=str(folder))))
    survives(lambda: load(LabeledData(dataset_name=str(folder), train_file="../rows.csv")))
