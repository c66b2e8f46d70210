"""Small labeled data in every file format, and the settings that train on it in a second."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

GOOD = ("great", "lovely", "superb", "fine")
BAD = ("awful", "poor", "dire", "grim")
NOUNS = ("food", "staff", "room", "bar", "tea", "service")

# A model of a few thousand weights, trained for a few steps.
BRIEF = ("--set", "train.max_steps=4", "--batch-size", "8", "--max-length", "16")
QUICK = ("--set", "model.vocab_size=300", *BRIEF)


def rows(count: int, seed: int, labels: tuple[str, str] = ("bad", "good")) -> list[tuple[str, str]]:
    """Label and text; the adjective decides."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        good = number % 2
        adjective = draw.choice(GOOD if good else BAD)
        found.append((labels[good], f"the {draw.choice(NOUNS)} was {adjective} on day {number} of visit {seed}"))
    return found


def write_csv(path: Path, found: list[tuple[str, ...]], header: tuple[str, ...] | None) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        if header:
            writer.writerow(header)
        writer.writerows(found)


def csv_folder(folder: Path) -> Path:
    folder.mkdir()
    for seed, split in enumerate(("train", "validation", "test")):
        write_csv(folder / f"{split}.csv", list(rows(40 if split == "train" else 16, seed)), ("label", "text"))
    return folder


def stars_folder(folder: Path) -> Path:
    """Headerless ``label,text`` with stars and literal backslash-n, as yelp_small has it."""
    folder.mkdir()
    for seed, split in enumerate(("train", "validation", "test")):
        found = [(stars, text + r"\nnever again") for stars, text in rows(40, seed, ("1", "5"))]
        write_csv(folder / f"{split}.csv", list(found), None)
    return folder


def parquet_folder(folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    for seed, split in enumerate(("train", "validation", "test")):
        found = rows(40, seed)
        table = pa.table({"sentence": [text for _, text in found], "label": [label == "good" for label, _ in found]})
        pq.write_table(table, folder / f"{split}-00000-of-00001.parquet")
    return folder


def pairs_folder(folder: Path) -> Path:
    """Premise and hypothesis as jsonl, with no test split: it is cut from train."""
    folder.mkdir()
    for seed, split in enumerate(("train", "validation")):
        lines: list[dict[str, Any]] = [
            {"premise": text, "hypothesis": "all was well", "label": "entails" if label == "good" else "denies"}
            for label, text in rows(60, seed)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return folder
