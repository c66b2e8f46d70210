"""Checks of a dataset, with planted duplicates, leaks and contradictions; near duplicates against brute force."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from facts import mentions

from hftune.data.checks import THRESHOLD, Check, Leak, LengthBin, check, is_shifted, label_shifts, near_pairs
from hftune.data.load import load
from hftune.data.locate import DATASETS
from hftune.data.settings import LabeledData

NOUNS = [f"{first}{second}" for first in "abcdefghij" for second in "klmnopqrst"]


def sentence(draw: random.Random, words: int = 30) -> str:
    return " ".join(draw.choice(NOUNS) for _ in range(words))


def changed(text: str, *places: int) -> str:
    words = text.split()
    for place in places:
        words[place] = "changed"
    return " ".join(words)


def runs(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[place : place + 3]) for place in range(len(words) - 2)}


def checked(folder: Path, parts: dict[str, list[dict[str, Any]]], max_length: int = 64, **options: Any) -> Check:
    for name, rows in parts.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return check(load(LabeledData(dataset_name=str(folder))), max_length, **options)


def test_near_pairs_are_those_of_brute_force() -> None:
    draw = random.Random(1)
    texts = [sentence(draw, draw.randint(20, 60)) for _ in range(60)]
    texts += [changed(text, *draw.sample(range(len(text.split())), draw.randint(1, 3))) for text in texts[:50]]
    known = [runs(text) for text in texts]
    expected = {
        (one, two)
        for one, two in combinations(range(len(texts)), 2)
        if len(known[one] & known[two]) >= THRESHOLD * len(known[one] | known[two])
    }
    found = set(near_pairs(texts))
    assert 10 <= len(expected) <= 40
    assert found <= expected
    assert len(found) >= len(expected) - 1  # candidates are drawn; at the threshold one may be missed


def test_case_and_punctuation_do_not_hide_a_copy_and_short_texts_are_compared_whole() -> None:
    assert near_pairs(["The food was great, really!", "the food was great  really"]) == [(0, 1)]
    assert near_pairs(["Good.", "good", "bad", "", "!!"]) == [(0, 1), (3, 4)]
    chinese = "这家餐厅的食物非常好吃我们一定会再来的服务也很周到价格合理环境优雅"
    assert near_pairs([chinese, chinese + "。", chinese[::-1]]) == [(0, 1)]


def test_of_pairs_both_texts_must_be_near() -> None:
    draw = random.Random(2)
    passage, question = sentence(draw, 100), sentence(draw, 12)
    firsts = [question, sentence(draw, 12), question + " now"]
    assert near_pairs(firsts, [passage] * 3) == [(0, 2)]


def test_many_copies_of_one_pattern_stay_bounded() -> None:
    draw = random.Random(3)
    pattern = sentence(draw, 60)
    texts = [f"{pattern} number {i}" for i in range(500)]
    assert {two for _, two in near_pairs(texts)} == set(range(1, 500))


def test_planted_faults_are_counted(tmp_path: Path) -> None:
    draw = random.Random(4)
    texts = [sentence(draw) for _ in range(60)]
    rows = [{"text": text, "label": ("no", "yes")[i % 2]} for i, text in enumerate(texts)]
    train = [
        *rows[:40],
        rows[0],
        {"text": texts[1], "label": "no"},  # is above with yes
        {"text": changed(texts[2], 15), "label": "no"},
    ]
    validation = [
        *rows[40:49],
        rows[2],
        rows[4],  # the first is also near to another row of train
        {"text": changed(texts[5], 0), "label": "yes"},
    ]
    test = [*rows[50:59], validation[0]]
    found = checked(tmp_path, {"train": train, "validation": validation, "test": test}, max_length=29)
    part = found.splits["train"]
    assert (part.rows, part.labels) == (43, {"no": 23, "yes": 20})
    assert (part.duplicates, part.near_duplicates) == (2, 1)
    assert found.leaks == (
        Leak("train", "validation", exact=2, near=1),
        Leak("train", "test", exact=0, near=0),
        Leak("validation", "test", exact=1, near=0),
    )
    assert found.conflicts == 1
    assert found.conflict_examples[0].text == texts[1]
    assert found.conflict_examples[0].labels == {"no": 1, "yes": 1}
    assert (part.median_length, part.longest, part.truncated, found.unit) == (30, 30, 1.0, "words")
    assert part.lengths == (LengthBin(0, 8, 0), LengthBin(9, 16, 0), LengthBin(17, 32, 43))
    assert mentions(found.findings, "2 rows", "16.7%", "validation", "train")
    assert mentions(found.findings, "1 row", "8.3%", "validation", "train")
    assert mentions(found.findings, "100.0% of train", "29 tokens")


def test_tokens_are_counted_where_a_counter_is_given(tmp_path: Path) -> None:
    rows = [{"text": "word " * (i + 1), "label": i % 2} for i in range(20)]
    found = checked(
        tmp_path,
        {"train": rows, "validation": rows[:2], "test": rows[:2]},
        max_length=21,
        lengths=lambda texts, seconds: [2 * len(text.split()) + 2 for text in texts],
    )
    assert found.unit == "tokens"
    assert found.splits["train"].longest == 42
    assert found.splits["train"].truncated == pytest.approx(11 / 20)
    assert mentions(found.findings, "55.0% of train", "21 tokens")


def test_a_test_split_without_labels_is_checked_too(tmp_path: Path) -> None:
    rows = [{"text": f"row {i}", "label": i % 3} for i in range(30)]
    found = checked(tmp_path, {"train": rows, "validation": rows[:2], "test": [{"text": "row 1"}]})
    assert found.splits["test"].labels == {}
    assert found.splits["validation"].labels == {"0": 1, "1": 1, "2": 0}
    assert mentions(found.findings, "validation", "1 label", 2)
    assert found.conflicts == 0


@pytest.mark.parametrize("name", DATASETS)
def test_an_embedded_dataset_is_clean(name: str) -> None:
    assert DATASETS[name].name == name
    splits = load(LabeledData(dataset_name=name))
    assert all(mentions(note, "test", "train") for note in splits.notes)  # boolq-mini has no test file, as BoolQ
    found = check(splits, 512)
    assert found.conflicts == 0
    assert all(leak.exact == 0 for leak in found.leaks)
    assert all(min(part.labels.values()) > 0 for part in found.splits.values())
    counts = DATASETS[name].row_counts()
    assert sum(part.rows for part in found.splits.values()) == sum(counts.values())
    assert found.splits["validation"].rows == counts["validation"]


def labeled(shares: dict[int, int]) -> list[dict[str, Any]]:
    """Rows without repeated texts, of each label as many as stated."""
    return [
        {"text": f"{label} {i} {id(shares)}", "label": label} for label, rows in shares.items() for i in range(rows)
    ]


def test_label_shares_of_validation_that_differ_strongly_are_a_finding(tmp_path: Path) -> None:
    # A real case: most training reviews have four stars, and validation was drawn with equal shares.
    train = labeled({1: 140, 2: 240, 3: 460, 4: 700, 5: 460})
    even = labeled(dict.fromkeys(range(1, 6), 100))
    found = checked(tmp_path, {"train": train, "validation": even, "test": train[::10]})
    assert mentions(found.findings[0], "validation", "'4' 35% and 20%", "'1' 7% and 20%", "task.class_weights=auto")
    assert not mentions(found.findings, "shares", "test")
    (tmp_path / "validation.jsonl").unlink()
    assert not label_shifts(load(LabeledData(dataset_name=str(tmp_path)))), "validation is drawn from train"


def test_small_samples_and_small_differences_are_no_shift() -> None:
    draw = random.Random(0)
    shares = (7, 12, 23, 35, 23)
    for rows in (5, 20, 50, 200):
        for _ in range(300):
            splits = [Counter(draw.choices(range(5), shares, k=size)) for size in (1000, rows)]
            assert not is_shifted(*splits), splits
    assert not is_shifted({0: 50_000, 1: 50_000}, {0: 54_000, 1: 46_000}), "certain, but small"
    assert not is_shifted({0: 8, 1: 2}, {0: 2, 1: 8}), "large, but chance"
    assert is_shifted({0: 800, 1: 200}, {0: 20, 1: 80})
    assert not is_shifted(Counter(range(1000)), Counter(range(500)))
