"""Tokenized rows and learned tokenizers that are kept: found again when nothing changed, and only then."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hftune.cache import cache_usage
from hftune.models import tokenizers
from hftune.models.load import PRESETS
from hftune.recipe import load_recipe
from hftune.tasks import task_class, tokens
from hftune.tasks.tokens import Encoded, TokenizedRows, tokenizer_fingerprint

ROWS = 60


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tokens, "MIN_ROWS", 1)
    monkeypatch.setattr(tokenizers, "MIN_CACHED_TEXTS", 1)
    return tmp_path / "cache"


def folder(tmp_path: Path, word: str = "soup") -> Path:
    made = tmp_path / f"data-{word}"
    made.mkdir(exist_ok=True)
    for split in ("train", "validation"):
        rows = [("good" if row % 2 else "bad", f"the {word} was number {row} of {split}") for row in range(ROWS)]
        with (made / f"{split}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("label", "text"), *rows])
    return made


def prepared(data: Path, **settings: Any) -> Any:
    plain = {
        "model.model_name_or_path": "scratch:bert-tiny",
        "model.vocab_size": 300,
        "data.dataset_name": str(data),
        "data.test_size": 0,
    }
    recipe = load_recipe(None, {**plain, **settings})
    task = task_class("classify")(recipe)
    rows = task.load_data()
    return task.prepare(rows, task.load_tokenizer(rows))


def kept_in(cache: Path) -> set[str]:
    return {path.stem for path in (cache / "tokens").iterdir()} if (cache / "tokens").is_dir() else set()


def test_the_second_time_nothing_is_tokenized(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = folder(tmp_path)
    first = prepared(data)
    assert len(kept_in(cache)) == 2

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("the tokenizer ran again")

    monkeypatch.setattr("hftune.tasks.classification.encode", fail)
    second = prepared(data)
    assert second.tokens == first.tokens and second.train_lengths == first.train_lengths
    assert [second.train[row] for row in range(ROWS)] == [first.train[row] for row in range(ROWS)]
    assert isinstance(second.train._encoded.columns["input_ids"], np.memmap)


@pytest.mark.parametrize("change", [{"data.max_seq_length": 6}, {"model.model_name_or_path": "scratch:roberta-tiny"}])
def test_other_settings_are_other_rows(tmp_path: Path, cache: Path, change: dict[str, Any]) -> None:
    data = folder(tmp_path)
    first, before = prepared(data), kept_in(cache)
    second = prepared(data, **change)
    assert first.tokens != second.tokens and len(kept_in(cache)) == 2 * len(before)


def test_other_text_is_other_rows(tmp_path: Path, cache: Path) -> None:
    assert prepared(folder(tmp_path)).tokens != prepared(folder(tmp_path, "stew")).tokens
    assert len(kept_in(cache)) == 4


def test_a_damaged_entry_is_made_again(tmp_path: Path, cache: Path) -> None:
    data = folder(tmp_path)
    first = prepared(data)
    for path in (cache / "tokens").glob("*/input_ids"):
        path.write_bytes(b"x")
    assert prepared(data).tokens == first.tokens
    assert prepared(data).tokens == first.tokens


def test_few_rows_are_not_kept(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MIN_ROWS", ROWS + 1)
    prepared(folder(tmp_path))
    assert not kept_in(cache)


def test_rows_come_back_as_they_were() -> None:
    rows = [
        {"input_ids": [1, 70_000, 3], "token_type_ids": [0, 0, 1], "attention_mask": [1, 1, 1]},
        {"input_ids": [4], "token_type_ids": [1], "attention_mask": [1]},
    ]
    made = TokenizedRows(Encoded.of(rows), [1, 0])
    assert [made[0], made[1]] == [{**rows[0], "labels": 1}, {**rows[1], "labels": 0}]
    assert made.lengths == [3, 1] and len(made) == 2
    assert made.fingerprint != TokenizedRows(Encoded.of(rows[::-1]), [0, 1]).fingerprint


def test_a_fingerprint_does_not_depend_on_what_the_tokenizer_did_last() -> None:
    tokenizer = PRESETS["bert-tiny"].train_tokenizer(["some text to learn from"] * 3, 60)
    before = tokenizer_fingerprint(tokenizer)
    tokenizer(["some text"], truncation=True, max_length=3, padding="max_length")
    assert tokenizer_fingerprint(tokenizer) == before


def test_a_learned_vocabulary_is_found_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"the soup was number {row}, or so they say: naïve!" for row in range(30)]
    preset = PRESETS["bert-tiny"]
    first = preset.train_tokenizer(texts, 300)
    with monkeypatch.context() as patch:
        patch.setattr(tokenizers, "_train_word_pieces", None)
        second = preset.train_tokenizer(texts, 300)
    assert tokenizer_fingerprint(second) == tokenizer_fingerprint(first)
    assert second(texts)["input_ids"] == first(texts)["input_ids"]
    for path in (cache / "vocabularies").glob("*/entry.json"):
        path.write_text("{")
    assert preset.train_tokenizer(texts, 300)(texts)["input_ids"] == first(texts)["input_ids"]


def test_what_is_kept_here_counts_against_the_bound(tmp_path: Path, cache: Path) -> None:
    prepared(folder(tmp_path))
    assert {entry.path.parent.name for entry in cache_usage()} == {"tokens", "vocabularies"}
