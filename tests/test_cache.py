"""What is kept between runs: bounded, what was not used for longest goes first, strangers' files stay."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hftune.cache import cache_folder, contents, make_room
from hftune.config.data import CorpusData
from hftune.data.stream import stream_corpus
from hftune.errors import HftuneError
from hftune.models.vocabulary import Learning, train_vocabulary
from hftune.tasks.packing import Packed, pack

HOUR = 3600


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def put(path: Path, hours: float, size: int = 400) -> Path:
    """A file that was last used so many hours ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    os.utime(path, (time.time() - hours * HOUR,) * 2)
    return path


def packed(folder: Path, text: str) -> Packed:
    folder.mkdir(exist_ok=True)
    (folder / "text.txt").write_text(text, encoding="utf-8")
    corpus = stream_corpus(CorpusData(dataset_name=str(folder / "text.txt"), validation_size=0.0))
    tokenizer = train_vocabulary("bpe", lambda: ["some text"], Learning(258))
    return pack(corpus.splits["train"], corpus.facts["train"], tokenizer, 0)


def test_what_was_not_used_for_longest_goes_first(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, older, half, now = (
        put(cache / "blocks" / f"{'a' * 32}.bin", 3),
        put(cache / "features" / f"{'b' * 64}.safetensors", 4),
        put(cache / "blocks" / f".{'c' * 32}.bin.k3j2", 30),
        put(cache / "blocks" / f"{'d' * 32}.bin", 0.5),
    )
    note = put(old.with_suffix(".json"), 9, size=100)
    strange = [put(cache / "blocks" / "thesis.bin", 99), put(cache / f"{'e' * 32}.bin", 99)]
    assert [one.size for one in contents()] == [400, 400, 500, 400], "from long ago till now"
    make_room()
    assert half.exists(), "20 GB are not much for this"
    monkeypatch.setenv("HFTUNE_CACHE_GB", "1e-6")  # a thousand bytes
    make_room()
    assert not half.exists() and not older.exists() and old.exists() and note.exists()
    monkeypatch.setenv("HFTUNE_CACHE_GB", "0")
    make_room()
    assert not old.exists() and not note.exists(), "tokens and the note on them are one"
    assert now.exists() and all(path.exists() for path in strange)


def test_a_text_that_is_used_again_stays_and_a_new_one_takes_its_place(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = packed(tmp_path / "a", "some text of one kind")
    put(first.path, 5, size=first.path.stat().st_size)
    os.utime(first.path.with_suffix(".json"), (1, 1))
    monkeypatch.setenv("HFTUNE_CACHE_GB", "0")
    assert packed(tmp_path / "a", "some text of one kind").path == first.path
    packed(tmp_path / "b", "some text of another kind")
    assert first.path.exists(), "it was used just now"
    os.utime(first.path, (1, 1))
    packed(tmp_path / "c", "some text of a third kind")
    assert not first.path.exists() and len(contents()) == 2


def test_a_folder_or_a_size_that_is_none_is_said(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in ("much", "-1", "nan"):
        monkeypatch.setenv("HFTUNE_CACHE_GB", size)
        with pytest.raises(HftuneError, match=f"HFTUNE_CACHE_GB is '{size}'"):
            cache_folder("blocks")
    monkeypatch.delenv("HFTUNE_CACHE_GB")
    cache.write_text("a file, not a folder", encoding="utf-8")
    with pytest.raises(HftuneError, match="can't be written to") as caught:
        packed(tmp_path / "a", "some text")
    assert "HFTUNE_CACHE=FOLDER" in caught.value.hint
