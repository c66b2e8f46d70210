"""The cache: bounded, least recently used entries go first, other files stay, damage is found, one process computes."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facts import hftune_error, mentions

from hftune.cache import (
    CacheEntry,
    NewEntry,
    cache_folder,
    cache_key,
    cache_usage,
    cached,
    delete_oldest,
    locked,
    new_entry,
    read_entry,
)
from hftune.data.corpus import stream_corpus
from hftune.data.settings import CorpusData
from hftune.models.tokenizers import train_tokenizer
from hftune.tasks.tokens import Packed, pack

HOUR = 3600
KEY = "a" * 32


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def put(path: Path, hours: float, size: int = 400) -> Path:
    """An entry that was last used some hours ago."""
    path.mkdir(parents=True)
    for file in (path / "x.bin", path / "entry.json"):
        file.write_bytes(b"x" * (size // 2))
        os.utime(file, (time.time() - hours * HOUR,) * 2)
    os.utime(path, (time.time() - hours * HOUR,) * 2)
    return path


def packed(folder: Path, text: str) -> Packed:
    folder.mkdir(exist_ok=True)
    (folder / "text.txt").write_text(text, encoding="utf-8")
    corpus = stream_corpus(CorpusData(dataset_name=str(folder / "text.txt"), validation_size=0.0))
    tokenizer = train_tokenizer("bpe", lambda: ["some text"], 258)
    return pack(corpus.named["train"], corpus.facts["train"], tokenizer, 0)


def double(numbers: list[int], calls: list[int]) -> Any:
    """Doubled numbers, from the cache or computed."""

    def make() -> np.ndarray[Any, Any]:
        calls.append(1)
        return np.array(numbers) * 2

    def save(values: np.ndarray[Any, Any], new: NewEntry) -> None:
        new.info["count"] = len(values)
        new.array("values", values.dtype, [values[:1], values[1:]])

    def load(entry: CacheEntry) -> np.ndarray[Any, Any]:
        assert entry.info == {"count": len(numbers)}
        return entry.array("values")

    return cached("tokens", cache_key(numbers), make, save=save, load=load)


def test_a_result_is_computed_once_and_then_mapped(cache: Path) -> None:
    calls: list[int] = []
    for _ in range(3):
        found = double([1, 2, 3], calls)
        assert found.tolist() == [2, 4, 6]
    assert isinstance(found, np.memmap) and len(calls) == 1
    assert double([4], calls).tolist() == [8] and double([], calls).tolist() == []
    assert double([], calls).tolist() == [] and len(calls) == 3
    assert cache.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["entry.json", "values"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: b"",
        lambda whole: whole[:-5],
        lambda whole: whole.replace(b"3", b"4"),
        lambda whole: whole.replace(b"\x02", b"\x07"),
    ],
)
def test_a_changed_file_is_found(cache: Path, name: str, damage: Any, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []
    double([1, 2, 3], calls)
    (file,) = (cache / "tokens").glob(f"*/{name}")
    before = file.read_bytes()
    file.write_bytes(damage(before))
    changed = file.read_bytes() != before
    for _ in range(2):
        assert double([1, 2, 3], calls).tolist() == [2, 4, 6]
    assert len(calls) == 1 + changed and ("damaged" in caplog.text) == changed


def test_a_deleted_file_is_made_again_without_a_warning(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []
    for name in ("values", "entry.json"):
        double([1, 2, 3], calls)
        next((cache / "tokens").glob(f"*/{name}")).unlink()
    assert double([1, 2, 3], calls).tolist() == [2, 4, 6]
    assert len(calls) == 3 and not caplog.records


def test_an_entry_is_whole_or_absent(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt), new_entry("rows", KEY) as new:
        new.array("x", np.dtype(int), [np.arange(3)])
        raise KeyboardInterrupt
    assert read_entry("rows", KEY) is None and not list((cache / "rows").iterdir())


def test_a_disk_that_fills_up_costs_only_time(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("hftune.cache.write_json", full)
    calls: list[int] = []
    assert [double([1], calls).tolist() for _ in range(2)] == [[2], [2]] and len(calls) == 2
    assert mentions(caplog.text, "not cached") and not cache_usage()


def test_a_folder_that_is_a_file_costs_only_time(cache: Path) -> None:
    cache.write_text("a file")
    assert double([1], []).tolist() == [2]


def test_one_at_a_time_computes(cache: Path) -> None:
    calls: list[int] = []
    started = threading.Event()

    def other() -> None:
        started.set()
        double([1], calls)

    with locked("tokens", cache_key([1])):
        thread = threading.Thread(target=other)
        thread.start()
        assert started.wait(60)
        time.sleep(0.1)
        assert not calls
    thread.join()
    double([1], calls)
    assert len(calls) == 1


def test_least_recently_used_entries_go_first(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, older, half, now = (
        put(cache / "blocks" / ("a" * 32), 3),
        put(cache / "features" / ("b" * 32), 4, size=500),
        put(cache / "blocks" / f".{'c' * 32}.k3j2", 30),
        put(cache / "blocks" / ("d" * 32), 0.5),
    )
    foreign = [put(cache / "blocks" / "thesis", 99), put(cache / ("e" * 32), 99)]
    (cache / "blocks" / ("f" * 32)).write_text("not a folder")
    assert [one.bytes for one in cache_usage()] == [400, 500, 400, 400], "the least recently used first"
    delete_oldest()
    assert half.exists(), "20 GB are enough for these"
    monkeypatch.setenv("HFTUNE_CACHE_GB", "1e-6")  # a thousand bytes
    delete_oldest()
    assert not half.exists() and not older.exists() and old.exists()
    monkeypatch.setenv("HFTUNE_CACHE_GB", "0")
    delete_oldest()
    assert not old.exists()
    assert now.exists() and all(path.exists() for path in foreign)


def test_a_text_that_is_used_again_stays_and_a_new_one_takes_its_place(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = packed(tmp_path / "a", "some text of one kind")
    index = first.path.with_name("entry.json")
    os.utime(index, (1, 1))
    monkeypatch.setenv("HFTUNE_CACHE_GB", "0")
    assert packed(tmp_path / "a", "some text of one kind").path == first.path
    packed(tmp_path / "b", "some text of another kind")
    assert first.path.exists(), "it was used just now"
    os.utime(index, (1, 1))
    packed(tmp_path / "c", "some text of a third kind")
    assert not first.path.exists() and len(cache_usage()) == 2


def test_a_wrong_folder_or_size_is_an_error(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in ("much", "-1", "nan"):
        monkeypatch.setenv("HFTUNE_CACHE_GB", size)
        with hftune_error("HFTUNE_CACHE_GB", f"'{size}'"):
            cache_folder("blocks")
    monkeypatch.delenv("HFTUNE_CACHE_GB")
    cache.write_text("a file, not a folder", encoding="utf-8")
    with hftune_error("can't be written") as caught:
        packed(tmp_path / "a", "some text")
    assert "HFTUNE_CACHE=FOLDER" in caught.value.hint
