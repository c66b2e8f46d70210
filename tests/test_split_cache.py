"""Splits that are kept between runs: found again when nothing changed, and only then, with every row as it was."""

from __future__ import annotations

import csv
import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hftune import data
from hftune.cache import contents
from hftune.config.data import JointData, LabeledData
from hftune.data import split_cache
from hftune.data.splits import Splits
from hftune.errors import HftuneError

ROWS = 40


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(split_cache, "WORTH", 1)
    split_cache._reader.cache_clear()
    yield tmp_path / "cache"
    split_cache._reader.cache_clear()


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


def kept_in(cache: Path, ending: str) -> set[str]:
    return {path.name for path in (cache / "rows").glob(f"*.{ending}")}


def told(splits: Splits) -> dict[str, Any]:
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

    monkeypatch.setattr("hftune.data.read_file", fail)


def test_the_second_time_nothing_is_read(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = told(data.load(asked(folder)))
    assert first["rows"]["test"][0]["label"] == -1 and any("left out" in note for note in first["notes"])
    assert len(kept_in(cache, "json")) == 1 and len(kept_in(cache, "arrow")) == 3
    no_reading(monkeypatch)
    second = data.load(asked(folder))
    assert told(second) == first and all(rows.cache_files for rows in second.named.values())
    assert told(data.load(asked(folder, max_seq_length=7, truncation="only_first"))) == first  # rows are not cut here


@pytest.mark.parametrize(
    "change",
    [{"max_train_samples": 10}, {"split_seed": 3}, {"validation_size": 0.3}, {"text_pair_column_name": "none"}],
)
def test_other_settings_are_other_rows(folder: Path, cache: Path, change: dict[str, Any]) -> None:
    first = data.load(asked(folder))
    second = data.load(asked(folder, **change))
    assert first.fingerprints["train"] != second.fingerprints["train"]
    assert len(kept_in(cache, "json")) == 2
    assert told(data.load(asked(folder, **change))) == told(second)


def test_subsets_share_the_files_of_what_they_have_in_common(folder: Path, cache: Path) -> None:
    data.load(asked(folder))
    data.load(asked(folder, max_train_samples=10))
    assert len(kept_in(cache, "arrow")) == 4  # two trains, one validation, one test


def test_a_changed_file_is_read(folder: Path, cache: Path) -> None:
    before = data.load(asked(folder))
    (folder / "train.csv").write_text((folder / "train.csv").read_text().replace("is it 3?", "is it 4?"))
    after = data.load(asked(folder))
    assert after.fingerprints["train"] != before.fingerprints["train"]
    (folder / "train.csv").write_text("question,passage,label\nx,y\n")
    with pytest.raises(HftuneError, match="expected 3 columns"):
        data.load(asked(folder))


def test_a_file_that_changes_while_it_is_read_is_not_kept(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "train.csv"
    before = path.read_bytes()
    reading = data.read_file

    def late(file: Path, named: Any) -> Any:
        path.write_bytes(before.replace(b"is it 3?", b"is it 4?"))
        return reading(file, named)

    with monkeypatch.context() as patch:
        patch.setattr(data, "read_file", late)
        data.load(asked(folder))
    path.write_bytes(before)
    assert any("is it 3? naïve" in row["text"] for rows in data.load(asked(folder)).named.values() for row in rows)


@pytest.mark.posix("makes symbolic links")
def test_changed_code_reads_anew(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data.load(asked(folder))
    copy = shutil.copytree(Path(split_cache.__file__).parent, tmp_path / "code")
    (copy / ".#rows.py").symlink_to(tmp_path / "nowhere")  # an editor's lock
    monkeypatch.setattr(split_cache, "__file__", str(copy / "split_cache.py"))
    for changed, notes in ((False, 1), (True, 2)):
        if changed:
            (copy / "rows.py").write_text((copy / "rows.py").read_text() + "#")
        split_cache._reader.cache_clear()
        data.load(asked(folder))
        assert len(kept_in(cache, "json")) == notes


@pytest.mark.parametrize("library", ["pyarrow", "datasets"])
def test_other_versions_read_anew(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    data.load(asked(folder))
    monkeypatch.setattr(split_cache, "version", lambda name: "0" if name == library else metadata.version(name))
    split_cache._reader.cache_clear()
    data.load(asked(folder))
    assert len(kept_in(cache, "json")) == 2


def test_joint_data_finds_what_plain_data_kept(folder: Path, cache: Path) -> None:
    data.load(asked(folder))
    data.load(JointData(dataset_name=str(folder), unlabeled="train"))
    assert len(kept_in(cache, "json")) == 1


@pytest.mark.posix("makes a named pipe")
def test_a_pipe_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "dev.csv")
    with pytest.raises(HftuneError, match="not a regular file"):
        data.load(asked(folder))


def without_rows(whole: bytes) -> bytes:
    """A stream that was cut where its only batch begins reads as a whole one."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.ipc.open_stream(whole).schema):
        pass
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    ("ending", "damage"),
    [
        ("json", lambda whole: b"x"),
        ("json", lambda whole: b"{}"),
        ("json", lambda whole: whole.replace(b'"validation"', b'"div"')),
        ("json", lambda whole: b'{"files": []}'),
        ("arrow", lambda whole: b""),
        ("arrow", lambda whole: b"x"),
        ("arrow", lambda whole: whole[: len(whole) // 2]),
        ("arrow", lambda whole: whole[:-9]),
        ("arrow", without_rows),
        ("arrow", lambda whole: whole.replace(b"is it 3?", b"is it 4?")),
    ],
)
def test_a_damaged_file_is_made_again(
    folder: Path, cache: Path, ending: str, damage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = told(data.load(asked(folder)))
    for path in (cache / "rows").glob(f"*.{ending}"):
        path.write_bytes(damage(path.read_bytes()))
    assert told(data.load(asked(folder))) == first
    no_reading(monkeypatch)
    assert told(data.load(asked(folder))) == first


def test_a_file_that_was_cleared_away_is_made_again(
    folder: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = told(data.load(asked(folder)))
    for path in (cache / "rows").glob("*.arrow"):
        path.unlink()
    assert told(data.load(asked(folder))) == first
    assert not caplog.records and len(kept_in(cache, "arrow")) == 3


def test_a_cache_that_takes_nothing_stops_nobody(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = told(data.load(asked(folder)))
    (tmp_path / "blocked").write_text("")
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path / "blocked"))
    assert told(data.load(asked(folder))) == first


def test_a_disk_that_fills_up_stops_nobody(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(split_cache, "write_json", full)
    data.load(asked(folder))
    assert not kept_in(cache, "json") and "rows are not kept" in caplog.text


def test_a_new_cache_is_its_owners_alone(folder: Path, cache: Path) -> None:
    data.load(asked(folder))
    assert cache.stat().st_mode & 0o777 == 0o700


def test_small_files_are_not_kept(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_cache, "WORTH", 10**6)
    data.load(asked(folder))
    assert not contents()


def test_what_is_kept_counts_against_the_bound(folder: Path, cache: Path) -> None:
    data.load(asked(folder))
    assert sum(one.size for one in contents()) == sum(path.stat().st_size for path in (cache / "rows").iterdir())


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
