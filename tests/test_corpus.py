"""Corpora: documents from every kind of file, and an error with the place of everything that is wrong with one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from facts import hftune_error

from hftune.data.corpus import CORPORA, Corpus, load_texts
from hftune.data.settings import CorpusData

TEXTS = ["Ada was born in Rome .", "Bo was born in Oslo .", "Cy was born in Lima ."]


def load(path: Path | str, **settings: Any) -> Corpus:
    return load_texts(CorpusData(**{"dataset_name": str(path), "validation_size": 0.0, **settings}), min_length=4)


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_lines_paragraphs_and_whole_files(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one one\r\ntwo two\n\n\nthree\n")
    assert load(path).train == ("one one", "two two", "three")
    assert load(path, documents="paragraphs").train == ("one one\ntwo two", "three")
    assert load(path, documents="file").train == ("one one\r\ntwo two\n\n\nthree",)


def test_tables_have_a_text_column(tmp_path: Path) -> None:
    rows = [{"id": number, "text": text} for number, text in enumerate([*TEXTS, None, "  "])]
    lines = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for path in (lines, tmp_path / "a.parquet"):
        assert load(path).train == tuple(TEXTS)
    with hftune_error("text", "'id'", 0):
        load(lines, text_column_name="id")
    with hftune_error("'txt'"):
        load(lines, text_column_name="txt")
    with hftune_error("data.text_column_name", "'b.txt'"):
        load(write(tmp_path / "b.txt", TEXTS[0]), text_column_name="text")


def test_a_folder_has_split_files_and_other_tables_next_to_a_text_are_ignored(tmp_path: Path) -> None:
    for name, text in zip(("train", "valid", "test"), TEXTS, strict=True):
        write(tmp_path / "splits" / f"{name}.txt", text)
    found = load(tmp_path / "splits")
    assert (found.train, found.validation, found.test) == tuple((text,) for text in TEXTS)
    assert not found.validation_is_train
    write(tmp_path / "births" / "wiki.txt", "\n".join(TEXTS))
    write(tmp_path / "births" / "birth_places_train.tsv", "Where was Ada born?\tRome\n")
    assert load(tmp_path / "births").train == tuple(TEXTS)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "", ["'a.txt' has no text"]),
        ("a.txt", "\n \n\n", ["'a.txt' has no text"]),
        ("a.txt", b"PAR1\0\0", ["binary file (parquet)"]),
        ("a.txt", b"good\nb\0d", ["NUL byte", "offset 6", "line 2"]),
        ("a.txt", b"good\nJos\xe9 is late", ["UTF-8", "0xe9", "offset 8", "line 2"]),
        ("a.txt", "long enough\nabc\nfine again\nx\n", ["2 documents", "'a.txt'", 4, "line 2", "'abc'"]),
        ("a.jsonl", '{"text": "fine text"}\n{"text": "no"}\n', ["1 document", "'a.jsonl'", "line 2", "'no'"]),
        ("a.jsonl", '{"text": " "}\n', ["'a.jsonl' has no text"]),
        ("a.pdf", "text", ["unknown ending: '.pdf'"]),
    ],
)
def test_what_is_wrong_is_reported_with_its_place(
    tmp_path: Path, name: str, content: str | bytes, message: list[str | int]
) -> None:
    with hftune_error(*message):
        load(write(tmp_path / name, content))


def test_short_documents_are_left_out_where_asked_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "long enough\nabc\nfine again\nx\n")
    section = CorpusData(dataset_name=str(path), validation_size=0.0)
    found = load_texts(section, min_length=4, drop_short=True)
    assert found.train == ("long enough", "fine again")
    assert found.notes[0].startswith("left out 2 documents of 'a.txt'")
    with hftune_error("2 documents"):
        load_texts(
            CorpusData(dataset_name=str(write(tmp_path / "b.txt", "a\nb\n")), validation_size=0.0),
            min_length=4,
            drop_short=True,
        )


def test_missing_files_and_settings_of_the_hub(tmp_path: Path) -> None:
    with hftune_error("no file or folder") as caught:
        load(tmp_path / "wikki.txt")
    assert "births, prose" in caught.value.hint
    with hftune_error("data.dataset_revision", "'v1'", "'births'"):
        load("births", dataset_revision="v1")


def test_splits_are_seeded_and_fingerprints_follow_the_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "\n".join(f"document {number}" for number in range(100)) + "\ndocument 1\n")
    first, again = load(path, validation_size=0.2), load(path, validation_size=0.2)
    assert first == again and len(first.validation) == pytest.approx(20, abs=1)
    assert load(path, validation_size=0.2, split_seed=1).validation != first.validation
    assert not set(first.train) & set(first.validation), "documents that say the same stay together"
    assert load(path).fingerprints["train"] != first.fingerprints["train"]
    with hftune_error("too few", "documents") as caught:
        load(write(tmp_path / "b.txt", "only one\n"), validation_size=0.5)
    assert "data.validation_size=0" in caught.value.hint


def test_embedded_texts_are_whole() -> None:
    births, prose = load("births"), load("prose")
    assert (len(births.train), len(births.validation), births.test) == (1280, 500, None)
    assert births.validation_is_train and set(births.validation) <= set(births.train)
    assert sorted(map(len, prose.train))[1] > 1000, "a story is a document"
    assert {name: corpus.row_counts()["train"] for name, corpus in CORPORA.items()} == {"births": 1280, "prose": 462}
