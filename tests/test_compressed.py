"""Gzip-compressed files: read as their plain versions are, in every place that reads text, and only up to a bound."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from facts import hftune_error, mentions
from tiny import QUICK, rows

from hftune.data import text_files
from hftune.data.corpus import lines_of, load_texts, stream_corpus
from hftune.data.load import load
from hftune.data.locate import is_hub_id
from hftune.data.questions import load_questions
from hftune.data.settings import CorpusData, LabeledData, QuestionData
from hftune.data.text_files import ending_of, stem_of
from hftune.errors import HftuneError

FOUND = rows(40, seed=1)
PLAIN = {
    ".csv": "label,text\n" + "".join(f"{label},{text}\n" for label, text in FOUND),
    ".tsv": "label\ttext\n" + "".join(f"{label}\t{text}\n" for label, text in FOUND),
    ".jsonl": "".join(json.dumps({"label": label, "text": text}) + "\n" for label, text in FOUND),
    ".json": json.dumps([{"label": label, "text": text} for label, text in FOUND]),
    ".txt": "".join(f"__label__{label}\t{text}\n" for label, text in FOUND),
}


def write(path: Path, text: str) -> Path:
    content = text.encode()
    path.write_bytes(gzip.compress(content) if path.suffix.lower() == ".gz" else content)
    return path


@pytest.mark.parametrize("ending", PLAIN)
def test_a_compressed_file_is_the_same_data(tmp_path: Path, ending: str) -> None:
    plain = load(LabeledData(dataset_name=str(write(tmp_path / f"a{ending}", PLAIN[ending]))))
    small = load(LabeledData(dataset_name=str(write(tmp_path / f"b{ending}.gz", PLAIN[ending]))))
    assert small.fingerprints == plain.fingerprints
    assert len(small.train) + len(small.validation) + len(small.test or []) == len(FOUND)


def test_split_files_and_shards_of_a_folder(tmp_path: Path) -> None:
    header, *lines = PLAIN[".csv"].splitlines(keepends=True)
    for number in range(2):
        write(tmp_path / f"train-0000{number}-of-00002.csv.gz", header + "".join(lines[number * 12 : number * 12 + 12]))
    write(tmp_path / "dev.csv.gz", header + "".join(lines[24:32]))
    write(tmp_path / "test.CSV.GZ", header + "".join(lines[32:]))
    splits = load(LabeledData(dataset_name=str(tmp_path)))
    assert [len(part) for part in splits.named.values()] == [24, 8, 8]
    write(tmp_path / "dev.csv", PLAIN[".csv"])
    with hftune_error("validation", "'dev.csv'", "'dev.csv.gz'"):
        load(LabeledData(dataset_name=str(tmp_path)))


def test_corpora_unlabeled_text_and_questions(tmp_path: Path) -> None:
    text = "".join(f"{text}\n" for _, text in FOUND)
    for name in ("a.txt", "b.txt.gz"):
        write(tmp_path / name, text)
    write(tmp_path / "c.jsonl.gz", PLAIN[".jsonl"])
    sections = [
        CorpusData(dataset_name=str(tmp_path / name), validation_size=0.1)
        for name in ("a.txt", "b.txt.gz", "c.jsonl.gz")
    ]
    streamed = [stream_corpus(section).facts for section in sections]
    assert streamed[0] == streamed[1] == streamed[2]
    assert load_texts(sections[0]).fingerprints == load_texts(sections[1]).fingerprints
    assert lines_of(tmp_path / "b.txt.gz").all_texts() == lines_of(tmp_path / "a.txt").all_texts()
    write(tmp_path / "q.tsv.gz", "".join(f"Where was {i}?\tParis\n" for i in range(20)))
    assert len(load_questions(QuestionData(dataset_name=str(tmp_path / "q.tsv.gz"))).train) == 18


def test_predict_takes_compressed_files(here: Path, hftune: Callable[..., tuple[int, str, str]]) -> None:
    write(here / "rows.csv.gz", PLAIN[".csv"])
    code, _, errors = hftune(
        "classify", "--data", "rows.csv.gz", "--model", "scratch:bert-tiny", *QUICK, "--output", "run"
    )
    assert code == 0, errors
    texts = [text for _, text in FOUND]
    write(here / "texts.txt.gz", "".join(f"{text}\n" for text in texts))
    write(here / "rows.jsonl.gz", PLAIN[".jsonl"])
    found = []
    for name in ("texts.txt.gz", "rows.jsonl.gz", "rows.csv.gz"):
        code, output, errors = hftune("predict", "run", "--file", name)
        assert code == 0, errors
        found.append([json.loads(line) for line in output.splitlines()])
    assert found[0] == found[1] == found[2]
    assert [row["text"] for row in found[0]] == texts
    (here / "texts.gz").write_bytes(gzip.compress(b"a\n"))
    code, _, errors = hftune("predict", "run", "--file", "texts.gz")
    assert code == 2 and "'.gz'" in errors and ".csv.gz" in errors


def test_a_bomb_is_refused_wherever_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "MIN_LIMIT", 1 << 20)
    bomb = write(tmp_path / "bomb.jsonl.gz", '{"text": "' + "a" * (3 << 20) + '", "label": "x"}\n')
    assert bomb.stat().st_size < 10_000
    for read in (
        lambda: load(LabeledData(dataset_name=str(bomb))),
        lambda: stream_corpus(CorpusData(dataset_name=str(bomb), validation_size=0.1)),
        lambda: load_texts(CorpusData(dataset_name=str(bomb), validation_size=0.1)),
    ):
        with hftune_error("'bomb.jsonl.gz'", "1 MB") as caught:
            read()
        assert "gunzip" in caught.value.hint


def test_memory_bounds_what_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "MAX_IN_MEMORY", 1000)
    path = write(tmp_path / "a.csv.gz", PLAIN[".csv"])
    with hftune_error("decompresses to more"):
        load(LabeledData(dataset_name=str(path)))


@pytest.mark.parametrize(
    "content",
    [b"label,text\n1,a\n", gzip.compress(PLAIN[".csv"].encode())[:-20], gzip.compress(b"a" * 99)[:12] + b"\xff" * 40],
    ids=["plain", "cut", "damaged"],
)
def test_a_damaged_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.csv.gz").write_bytes(content)
    with hftune_error("a", "gzip") as caught:
        load(LabeledData(dataset_name=str(tmp_path / "a.csv.gz")))
    assert mentions(caught.value.hint, "end in .gz")


def test_a_compressed_file_without_its_ending_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(gzip.compress(PLAIN[".csv"].encode()))
    with pytest.raises(HftuneError, match="gzip") as caught:
        load(LabeledData(dataset_name=str(tmp_path / "a.csv")))
    assert "'a.csv.gz'" in caught.value.hint


def test_endings() -> None:
    assert [ending_of(Path(name)) for name in ("a.csv", "A.CSV.GZ", "a.gz", "a.parquet.gz", "a.b.jsonl.gz")] == [
        ".csv",
        ".csv",
        ".gz",
        ".gz",
        ".jsonl",
    ]
    assert [stem_of(Path(name)) for name in ("a.csv", "a.b.csv.gz", "a.gz")] == ["a", "a.b", "a"]
    assert not is_hub_id("owner/rows.csv.gz") and not is_hub_id("rows.gz") and is_hub_id("owner/rows-v1.0")
