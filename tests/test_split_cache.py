"""Splits that are kept between runs: found again when nothing changed, and only then, with every row as it was."""

from __future__ import annotations

import csv
import hashlib
import os
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from facts import hftune_error

from hftune.cache import cache_usage
from hftune.data import load as data
from hftune.data.settings import JointData, LabeledData
from hftune.data.splits import Splits

ROWS = 40


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(data, "MIN_BYTES", 1)
    data._code.cache_clear()
    yield tmp_path / "cache"
    data._code.cache_clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "pairs"
    made.mkdir()
    rows = [(f"is it {row}? naïve\n“yes”", f"so says {row}", "01"[row % 2]) for row in range(ROWS)]
    with (made / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("question", "passage", "label"), *rows, ("", "", "")])
    (made / "test.csv").write_text("question,passage\n" + "".join(f"is it {row}?,so\n" for row in range(ROWS)))
    return made


def asked(folder: Path, **settings: Any) -> LabeledData:
    return LabeledData(dataset_name=str(folder), **settings)


def kept_in(cache: Path) -> set[str]:
    return {path.name for path in (cache / "rows").iterdir()}


def reported(splits: Splits) -> dict[str, Any]:
    return {
        "rows": {name: rows.to_list() for name, rows in splits.named.items()},
        "features": {name: rows.features for name, rows in splits.named.items()},
        "own fingerprints": {name: rows._fingerprint for name, rows in splits.named.items()},
        "labels": splits.labels,
        "source": splits.source,
        "fingerprints": splits.fingerprints,
        "notes": splits.notes,
    }


def no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("a file was read again")

    monkeypatch.setattr("hftune.data.load.read_table", fail)


def test_the_second_time_nothing_is_read(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = reported(data.load(asked(folder)))
    assert first["rows"]["test"][0]["label"] == -1 and any("left out" in note for note in first["notes"])
    assert len(kept_in(cache)) == 1
    no_reading(monkeypatch)
    second = data.load(asked(folder))
    assert reported(second) == first and all(rows.cache_files for rows in second.named.values())
    assert (
        reported(data.load(asked(folder, max_seq_length=7, truncation="only_first"))) == first
    )  # rows are not cut here


@pytest.mark.parametrize(
    "change",
    [{"max_train_samples": 10}, {"split_seed": 3}, {"validation_size": 0.3}, {"text_pair_column_name": "none"}],
)
def test_other_settings_are_other_rows(folder: Path, cache: Path, change: dict[str, Any]) -> None:
    first = data.load(asked(folder))
    second = data.load(asked(folder, **change))
    assert first.fingerprints["train"] != second.fingerprints["train"]
    assert len(kept_in(cache)) == 2
    assert reported(data.load(asked(folder, **change))) == reported(second)


def test_a_changed_file_is_read(folder: Path, cache: Path) -> None:
    before = data.load(asked(folder))
    (folder / "train.csv").write_text((folder / "train.csv").read_text().replace("is it 3?", "is it 4?"))
    after = data.load(asked(folder))
    assert after.fingerprints["train"] != before.fingerprints["train"]
    (folder / "train.csv").write_text("question,passage,label\nx,y\n")
    with hftune_error("train.csv", "3 columns"):
        data.load(asked(folder))


def test_a_file_that_changes_while_it_is_read_is_not_kept(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "train.csv"
    before = path.read_bytes()
    reading = data.read_table

    def late(file: Path, *settings: Any) -> Any:
        path.write_bytes(before.replace(b"is it 3?", b"is it 4?"))
        return reading(file, *settings)

    with monkeypatch.context() as patch:
        patch.setattr(data, "read_table", late)
        data.load(asked(folder))
    path.write_bytes(before)
    assert any("is it 3? naïve" in row["text"] for rows in data.load(asked(folder)).named.values() for row in rows)


@pytest.mark.posix("makes symbolic links")
def test_changed_code_reads_anew(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data.load(asked(folder))
    copy = shutil.copytree(Path(data.__file__).parent, tmp_path / "code")
    (copy / ".#tables.py").symlink_to(tmp_path / "nowhere")  # an editor's lock
    monkeypatch.setattr(data, "__file__", str(copy / "load.py"))
    for changed, notes in ((False, 1), (True, 2)):
        if changed:
            (copy / "tables.py").write_text((copy / "tables.py").read_text() + "#")
        data._code.cache_clear()
        data.load(asked(folder))
        assert len(kept_in(cache)) == notes


@pytest.mark.parametrize("library", ["pyarrow", "datasets"])
def test_other_versions_read_anew(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    data.load(asked(folder))
    monkeypatch.setattr(data, "version", lambda name: "0" if name == library else metadata.version(name))
    data._code.cache_clear()
    data.load(asked(folder))
    assert len(kept_in(cache)) == 2


def test_joint_data_finds_what_plain_data_kept(folder: Path, cache: Path) -> None:
    data.load(asked(folder))
    data.load(JointData(dataset_name=str(folder), unlabeled="train"))
    assert len(kept_in(cache)) == 1


@pytest.mark.posix("makes a named pipe")
def test_a_pipe_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "dev.csv")
    with hftune_error("regular file"):
        data.load(asked(folder))


@pytest.mark.parametrize("name", ["entry.json", "train.arrow"])
def test_a_damaged_entry_is_made_again(folder: Path, cache: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = reported(data.load(asked(folder)))
    (path,) = (cache / "rows").glob(f"*/{name}")
    path.write_bytes(path.read_bytes()[:-9])
    assert reported(data.load(asked(folder))) == first
    no_reading(monkeypatch)
    assert reported(data.load(asked(folder))) == first


def test_small_files_are_not_kept(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "MIN_BYTES", 10**6)
    data.load(asked(folder))
    assert not cache_usage()


def test_a_note_on_this_folder_is_not_kept(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = data.load(LabeledData())
    (here / "reviews").mkdir()
    assert len(data.load(LabeledData()).notes) == len(plain.notes) + 1


def test_the_fingerprint_is_that_of_every_row_with_its_length(tmp_path: Path) -> None:
    rows = [("good", "añejo"), ("bad", "b"), ("good", "c"), ("bad", "d")]
    for split in ("train", "validation"):
        with (tmp_path / f"{split}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("label", "text"), *rows])
    stream = b""
    for part in ["2 False True", "bad", "good", *(cell for label, text in rows for cell in (text, "", label))]:
        stream += len(part.encode()).to_bytes(8, "little") + part.encode()
    found = data.load(LabeledData(dataset_name=str(tmp_path), test_size=0)).fingerprints["train"]
    assert found == hashlib.sha256(stream).hexdigest()
