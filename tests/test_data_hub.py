"""Datasets of the Hub, over the loopback hub: rows, label names, csv texts, the cache, and every way it can fail."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from facts import hftune_error, mentions
from loopback_hub import serve

from hftune.data.hub import choose_split
from hftune.data.load import load
from hftune.data.settings import LabeledData

SCRIPT = """
import json, sys
from hftune.data.settings import LabeledData
from hftune.data.load import load
from hftune.errors import HftuneError

seen = {}
for key, options in json.loads(sys.argv[1]).items():
    try:
        splits = load(LabeledData(**options))
    except HftuneError as error:
        seen[key] = [error.message, error.hint]
    else:
        seen[key] = {"labels": splits.labels, "notes": splits.notes, "prints": splits.fingerprints}
        seen[key] |= {split: rows.to_list() for split, rows in splits.named.items()}
print(json.dumps(seen))
"""

FEATURES = Features({"sentence": Value("string"), "label": ClassLabel(names=["worse", "better"])})


def part(size: int, tag: str, labels: tuple[int, ...] = (1, 0)) -> Dataset:
    rows = [{"sentence": f"{tag} {i}", "label": labels[i % len(labels)]} for i in range(size)]
    return Dataset.from_list(rows, features=FEATURES)


def parquet(rows: Dataset) -> bytes:
    buffer = io.BytesIO()
    rows.to_parquet(buffer)
    return buffer.getvalue()


def asked(output: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return answer


def test_rows_come_from_the_hub_then_from_its_cache(tmp_path: Path) -> None:
    root = str(Path(__file__).parent.parent)
    script = f"import sys; sys.path.insert(0, {root!r})\n{SCRIPT}"
    good = {"dataset_name": "tester/moods"}
    requests = {
        "good": good,
        "csv": {"dataset_name": "tester/rows", "test_size": 0},
        "missing": {"dataset_name": "tester/mood"},
        "typo": {"dataset_name": "reveiws"},
        "revision": good | {"dataset_revision": "no-such-branch"},
        "subset": good | {"dataset_config_name": "no-such-subset"},
        "split": good | {"validation_split_name": "vaildation"},
        "column": good | {"text_column_name": "sentnce"},
    }
    with serve() as hub:
        splits = {"train": part(20, "train"), "validation": part(6, "validation"), "test": part(4, "test", (-1,))}
        files = {f"data/{name}-00000-of-00001.parquet": parquet(rows) for name, rows in splits.items()}
        hub.add_dataset("tester/moods", files)
        lines = "".join(f"row {i},{i % 2}\n" for i in range(20))
        hub.add_dataset("tester/rows", {"train.csv": f"text,label\nNA,1\nnull,0\n{lines}".encode()})
        seen = asked(hub.run([sys.executable, "-c", script, json.dumps(requests)], tmp_path).stdout)
        where = hub.environment(tmp_path)
    assert seen["good"]["labels"] == ["worse", "better"]
    assert [len(seen["good"][split]) for split in ("train", "validation", "test")] == [20, 6, 4]
    assert seen["good"]["train"][1] == {"text": "train 1", "label": 0}
    assert {row["label"] for row in seen["good"]["test"]} == {-1}
    texts = {row["text"]: row["label"] for row in seen["csv"]["train"] + seen["csv"]["validation"]}
    assert texts["NA"] == 1 and texts["null"] == 0
    assert mentions(seen["missing"][0], "dataset", "Hub")
    assert mentions(seen["typo"][1], "mean 'reviews'")
    assert "no-such-branch" in seen["revision"][0]
    assert "data.dataset_config_name" in seen["subset"][1]
    assert mentions(seen["split"][1], "mean 'validation'")
    assert mentions(seen["column"][1], "mean 'sentence'")

    import subprocess

    away = {"good": good, "new": {"dataset_name": "google/boolq"}}
    command = [sys.executable, "-c", script, json.dumps(away)]
    after = subprocess.run(command, env=where, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    gone = asked(after.stdout)
    assert gone["good"]["prints"] == seen["good"]["prints"]
    assert mentions(gone["new"][0], "Hub", "'google/boolq'")
    assert mentions(gone["new"][1], "network", "reviews")


def test_offline_mode_is_an_unreachable_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with hftune_error("Hub", "'nobody/has-this'") as caught:
        load(LabeledData(dataset_name="nobody/has-this"))
    assert mentions(caught.value.hint, "network", "reviews")


def test_split_names_of_the_hub() -> None:
    assert choose_split(["train", "validation", "unsupervised"], "validation", None, "x") == "validation"
    assert choose_split(["train", "train_unlabeled"], "train", None, "x") == "train"
    assert choose_split(["train"], "test", None, "x") is None
    assert choose_split(["train_sft", "test_sft"], "train", None, "x") == "train_sft"
    mnli = ["train", "validation_matched", "validation_mismatched"]
    assert choose_split(mnli, "validation", "validation_mismatched", "x") == "validation_mismatched"
    assert choose_split(mnli, "validation", None, "nyu-mll/glue") == "validation_matched"
    with hftune_error("splits", "validation") as caught:
        choose_split(["train", "validation_easy", "validation_hard"], "validation", None, "x")
    assert "--set data.validation_split_name=validation_easy" in caught.value.hint
    assert choose_split(["test"], "train", None, "x") is None


def test_a_dataset_of_the_hub_keeps_its_name_as_source(monkeypatch: pytest.MonkeyPatch) -> None:
    import hftune.data.hub as hub

    monkeypatch.setattr(hub, "_download", lambda *_: (DatasetDict(train=part(20, "train")), []))
    splits = load(LabeledData(dataset_name="tester/moods"))
    assert splits.source == "tester/moods"
    assert len(splits.train) == 16
