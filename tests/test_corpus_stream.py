"""Text as a stream: documents in pieces, whatever their length; counts, splits and fingerprints that hold."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from facts import hftune_error

from hftune.data import chunks, text_files
from hftune.data.corpus import load_texts, stream_corpus
from hftune.data.locate import DATASETS
from hftune.data.settings import CorpusData
from hftune.errors import HftuneError

TEXT = "one two\nthree\n\n \nfour five six\r\nlast é"


def documents(path: Path, cut: str, **settings: str) -> list[str]:
    found, held = [], ""
    for text, ends, _ in chunks.file_chunks(path, CorpusData(dataset_name=str(path), **settings), cut):
        held += text
        if ends:
            found.append(held)
            held = ""
    assert not held, "the last document ends"
    return found


@pytest.mark.parametrize("piece", [4, 1 << 20])
@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        ("lines", ["one two", "three", "four five six", "last é"]),
        ("paragraphs", ["one two\nthree", "four five six\nlast é"]),
        ("file", [TEXT]),
    ],
)
def test_documents_are_whole_however_small_the_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int, cut: str, expected: list[str]
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_SIZE", piece)
    monkeypatch.setattr(text_files, "READ_SIZE", 3)  # cuts é in two
    path = tmp_path / "text.txt"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    assert documents(path, cut) == expected


def test_a_large_file_is_not_read_whole_to_report_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"a\n" * 10 + b"\xff" + b"b" * 100)
    monkeypatch.setattr(text_files, "READ_SIZE", 7)
    monkeypatch.setattr(Path, "read_bytes", None)
    with hftune_error("0xff", "offset 20", "line 11"):
        stream_corpus(CorpusData(dataset_name=str(path), validation_size=0.1))


def test_a_file_keeps_the_blanks_at_its_end_and_a_blank_file_is_no_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "text.txt"
    monkeypatch.setattr(chunks, "CHUNK_SIZE", 4)
    path.write_text("word\n\n\n\n\n\n", encoding="utf-8")
    assert documents(path, "file") == ["word\n\n\n\n\n\n"]
    path.write_text("\n\n", encoding="utf-8")
    assert documents(path, "file") == []


def test_a_line_without_end_comes_in_chunks(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("word " * 500_000 + "end", encoding="utf-8")
    found = list(chunks.file_chunks(path, CorpusData(dataset_name=str(path)), "lines"))
    assert len(found) == 3 and max(len(one.text) for one in found) <= chunks.CHUNK_SIZE
    assert "".join(one.text for one in found) == path.read_text(encoding="utf-8")
    corpus = stream_corpus(CorpusData(dataset_name=str(path), validation_size=0.0))
    assert corpus.facts["train"].words == 500_001, "a cut goes through no word"


def test_tables_stream_their_text_column(tmp_path: Path) -> None:
    rows = [{"id": 1, "text": "first"}, {"id": 2, "text": None}, {"id": 3, "text": "third\nline"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "a.json").write_text(json.dumps(rows), encoding="utf-8")
    for name in ("a.jsonl", "a.parquet", "a.json"):
        assert documents(tmp_path / name, "lines") == ["first", "third\nline"], name
    with hftune_error("text", "column"):
        documents(tmp_path / "a.jsonl", "lines", text_column_name="id")


def test_sizes_are_those_of_the_text(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("one two\ncafé\n", encoding="utf-8")
    (tmp_path / "valid.txt").write_text("three\n", encoding="utf-8")
    corpus = stream_corpus(CorpusData(dataset_name=str(tmp_path), validation_size=0.0))
    assert list(corpus.named) == ["train", "validation"]
    assert corpus.facts["train"].as_dict() == {"documents": 2, "bytes": 12, "words": 3}
    whole = stream_corpus(CorpusData(dataset_name=str(tmp_path), validation_size=0.0, documents="file"))
    assert whole.facts["train"].bytes == (tmp_path / "train.txt").stat().st_size
    assert whole.facts["train"].fingerprint != corpus.facts["train"].fingerprint


def test_validation_is_held_out_by_document_and_seed(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"document {row // 2}\n" for row in range(400)), encoding="utf-8")

    def split(seed: int) -> tuple[list[str], list[str]]:
        corpus = stream_corpus(CorpusData(dataset_name=str(path), validation_size=0.1, split_seed=seed))
        return list(corpus.named["train"].texts()), list(corpus.named["validation"].texts())

    train, validation = split(0)
    assert len(train) + len(validation) == 400 and len(validation) == 40, "20 of 200 different documents, each twice"
    assert not set(train) & set(validation)
    assert split(0) == (train, validation) and split(1)[1] != validation
    remembered = stream_corpus(CorpusData(dataset_name=str(path), validation_size=0.0))
    assert remembered.validation_is_train and remembered.facts["train"].documents == 400


def test_what_can_not_be_read_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("only one line", encoding="utf-8")
    with hftune_error("too few", "documents"):
        stream_corpus(CorpusData(dataset_name=str(path), validation_size=0.1))
    path.write_bytes(b"fine\n" * 300_000 + b"bad \xff byte")
    with hftune_error("line 300001"):
        stream_corpus(CorpusData(dataset_name=str(path), validation_size=0.1))
    path.write_bytes(b"fine\n" * 300_000 + "half é".encode()[:-1])
    with hftune_error("0xc3", "offset 1500005", "line 300001"):
        stream_corpus(CorpusData(dataset_name=str(path), validation_size=0.1))
    path.write_bytes(b"fine\n" * 300_000 + b"BZh, and a NUL \0")
    with hftune_error("NUL byte", "offset 1500015", "line 300001"):
        stream_corpus(CorpusData(dataset_name=str(path), validation_size=0.1))
    (tmp_path / "half.jsonl").write_text('{"text": "a"}\n{"text": "b \\ud83d"}\n', encoding="utf-8")
    for read in (stream_corpus, load_texts):
        with hftune_error("'half.jsonl'", "line 2", "surrogate"):
            read(CorpusData(dataset_name=str(tmp_path / "half.jsonl"), validation_size=0.1))
    with pytest.raises(HftuneError, match="'labeled'"):
        stream_corpus(CorpusData(dataset_name=str(path), documents="labeled", validation_size=0.1))
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{oops\n', encoding="utf-8")
    with hftune_error("line 2", "JSON"):
        stream_corpus(CorpusData(dataset_name=str(tmp_path / "bad.jsonl"), validation_size=0.1))
    with hftune_error("no file or folder"):
        stream_corpus(CorpusData(dataset_name=str(tmp_path / "nowhere.txt"), validation_size=0.1))
    (tmp_path / "text.pdf").write_text("a", encoding="utf-8")
    for read in (stream_corpus, load_texts):
        with hftune_error("ending") as caught:
            read(CorpusData(dataset_name=str(tmp_path / "text.pdf"), validation_size=0.1))
        assert ".txt" in caught.value.hint and ".csv" in caught.value.hint


def test_rows_of_the_hub_stream_their_text_column() -> None:
    from datasets import Dataset

    rows = Dataset.from_dict({"id": [1, 2, 3], "text": ["first", "", "third"]})
    found = list(chunks.hub_chunks("user/name (train)", rows, CorpusData(dataset_name="user/name")))
    assert found == [("first", True, "row 1"), ("third", True, "row 3")]


def test_embedded_datasets_give_their_texts() -> None:
    found = stream_corpus(CorpusData(dataset_name="reviews", validation_size=0.0))
    unlabeled = (DATASETS["reviews"].folder / "unlabeled.txt").read_text(encoding="utf-8").splitlines()
    assert list(found.named) == ["train", "validation", "test"] and not found.validation_is_train
    assert found.facts["train"].documents == len(unlabeled), "those without labels, as masked words have them"
    assert next(found.named["train"].texts()).split()[0] == unlabeled[0].split()[0]
    assert stream_corpus(CorpusData(dataset_name="boolq-mini", validation_size=0.0)).facts["validation"].documents
    with hftune_error("data.documents", "'file'"):
        stream_corpus(CorpusData(dataset_name="reviews", documents="file", validation_size=0.0))
