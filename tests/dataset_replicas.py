"""Replicas of dataset repositories of the Hub: their file layout, card, features, label names and split names.

Each is shrunk to a few dozen made-up examples, and laid out as the real repository is: where the files are, what the
card's YAML declares, which splits there are, and which of them have no labels. ``REPLICAS`` has one entry a repository;
``publish`` puts one on a loopback hub.
"""

from __future__ import annotations

import gzip
import io
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq
import yaml
from datasets import ClassLabel, Dataset, Features, Value
from loopback_hub import LoopbackHub

TRAIN, HELD_OUT = 48, 16
CONVERTED = "refs/convert/parquet"
NOUNS = ("plot", "cast", "score", "ending", "script", "camera", "film", "dialogue")
WORDS = ("dull", "plain", "fine", "bright", "grand", "odd", "calm", "sharp", "warm", "cold")

Row = dict[str, Any]
Make = Callable[[random.Random, int, Any], Row]
"""(random numbers, number of the example, label) → the example."""


@dataclass(frozen=True)
class Split:
    """One split: how many examples it has, and whether they have labels."""

    size: int
    labeled: bool = True


@dataclass(frozen=True)
class Config:
    """One configuration of a dataset."""

    features: Features
    splits: Mapping[str, Split]
    make: Make
    labels: Sequence[Any]
    """The label values, in turn; -1 takes their place in a split without labels."""
    unlabeled: Any = -1
    label: str = "label"

    def rows(self, split: str) -> list[Row]:
        """The examples of a split."""
        found, draw = self.splits[split], random.Random(split)
        return [
            self.make(draw, number, self.labels[number % len(self.labels)] if found.labeled else self.unlabeled)
            for number in range(found.size)
        ]


@dataclass(frozen=True)
class Replica:
    """One repository."""

    configs: Mapping[str, Config]
    path: str = "{config}/{split}-00000-of-00001.parquet"
    """Where the file of a split is."""
    card: str = "parquet"
    """What the card declares: ``parquet`` means configs and dataset_info, ``none`` neither."""
    default: str | None = None
    """The configuration that the card marks as the default."""
    script: bool = False
    """Whether the data are behind a loading script, and not in files."""
    conversion: bool = False
    """Whether the Hub has converted it to parquet."""
    extra: Mapping[str, bytes] = field(default_factory=dict)

    def files(self, repo_id: str) -> dict[str, bytes]:
        """The repository's main branch, by path."""
        found = {"README.md": self._card(repo_id).encode(), **self.extra}
        if self.script:
            return found | {
                f"{repo_id.rpartition('/')[2]}.py": b"import datasets\n\nraise SystemExit('a script was run')\n"
            }
        for name, config in self.configs.items():
            for split in config.splits:
                path = self.path.format(config=name, split=split)
                found[path] = encode(path, config.rows(split), config.features)
        return found

    def converted(self) -> dict[str, bytes]:
        """The Hub's own conversion, on a branch of its own that has no card."""
        return {
            f"{name}/{split}/0000.parquet": encode(".parquet", config.rows(split), config.features)
            for name, config in self.configs.items()
            for split in config.splits
        }

    def _card(self, repo_id: str) -> str:
        front: dict[str, Any] = {"language": ["en"], "task_categories": ["text-classification"]}
        if self.card == "parquet":
            infos, configs = [], []
            for name, config in self.configs.items():
                sizes = {split: len(json.dumps(config.rows(split))) for split in config.splits}
                splits = [
                    {"name": split, "num_bytes": sizes[split], "num_examples": part.size}
                    for split, part in config.splits.items()
                ]
                total = {"download_size": sum(sizes.values()), "dataset_size": sum(sizes.values())}
                named = {} if name == "default" else {"config_name": name}
                infos.append({**named, "features": config.features._to_yaml_list(), "splits": splits, **total})
                pattern = self.path.replace("00000-of-00001.parquet", "*")
                paths = [{"split": split, "path": pattern.format(config=name, split=split)} for split in config.splits]
                chosen = {"default": True} if name == self.default else {}
                configs.append({"config_name": name, "data_files": paths, **chosen})
            front |= {"dataset_info": infos if len(infos) > 1 else infos[0], "configs": configs}
        return f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n# Dataset Card for {repo_id}\n"


def encode(path: str, rows: Sequence[Row], features: Features) -> bytes:
    """Examples in the format that the file's name tells."""
    plain = path.removesuffix(".gz")
    if plain.endswith(".parquet"):
        buffer = io.BytesIO()
        # push_to_hub and the Hub's conversion both keep the features in the schema.
        pq.write_table(Dataset.from_list(list(rows), features=features).data.table, buffer)
        content = buffer.getvalue()
    elif plain.endswith(".jsonl"):
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    else:
        lines = [list(features), *([str(row[name]) for name in features] for row in rows)]
        content = "".join(",".join(f'"{cell}"' for cell in line) + "\n" for line in lines).encode()
    return gzip.compress(content) if path.endswith(".gz") else content


def publish(hub: LoopbackHub, repo_id: str) -> None:
    """Put the replica of a repository on the hub."""
    replica = REPLICAS[repo_id]
    hub.add_dataset(repo_id, replica.files(repo_id))
    if replica.conversion:
        hub.add_dataset(repo_id, replica.converted(), revision=CONVERTED)


def sentence(draw: random.Random, number: int, label: Any) -> str:
    """A text that goes with its label."""
    word = WORDS[int(label) % len(WORDS)] if isinstance(label, int) else draw.choice(WORDS)
    return f"the {draw.choice(NOUNS)} was {word} in scene {number}"


def texts(*columns: str, **others: Callable[[int], Any]) -> Make:
    """Examples with a sentence in each column, a label, and other columns by the number of the example."""

    def make(draw: random.Random, number: int, label: Any) -> Row:
        row: Row = {column: sentence(draw, number, label) for column in columns}
        return row | {"label": label} | {name: value(number) for name, value in others.items()}

    return make


def classes(*names: str) -> ClassLabel:
    return ClassLabel(names=list(names))


STRING = Value("string")
LABELED = {"train": Split(TRAIN), "validation": Split(HELD_OUT), "test": Split(HELD_OUT)}
HIDDEN_TEST = {**LABELED, "test": Split(HELD_OUT, labeled=False)}


def glue(columns: Sequence[str], names: Sequence[str], splits: Mapping[str, Split] = HIDDEN_TEST) -> Config:
    """A task of GLUE: strings, a ClassLabel, and the number of the example."""
    kinds = {**dict.fromkeys(columns, STRING), "label": classes(*names), "idx": Value("int32")}
    return Config(Features(kinds), splits, texts(*columns, idx=lambda number: number), range(len(names)))


def _boolq(draw: random.Random, number: int, label: Any) -> Row:
    word = "grand" if label else "dull"
    question = f"was the {draw.choice(NOUNS)} {word} in scene {number}"
    return {"question": question, "answer": label, "passage": f"In scene {number} all was {word}."}


def _sst5(draw: random.Random, number: int, label: Any) -> Row:
    names = ("very negative", "negative", "neutral", "positive", "very positive")
    return {"text": sentence(draw, number, label), "label": label, "label_text": names[label]}


def _stsb(draw: random.Random, number: int, label: Any) -> Row:
    return {
        "sentence1": sentence(draw, number, 0),
        "sentence2": sentence(draw, number, 1),
        "label": label,
        "idx": number,
    }


def _hate(draw: random.Random, number: int, label: Any) -> Row:
    return {
        "text": sentence(draw, number, label),
        "user_id": number,
        "subforum_id": 1346,
        "num_contexts": 0,
        "label": label,
    }


ENTAILMENT = ("entailment", "not_entailment")
THREE_WAY = ("entailment", "neutral", "contradiction")
NLI = ("premise", "hypothesis")
TWO = ("sentence1", "sentence2")
TEXT = {"text": STRING}

GLUE = {
    "ax": glue(NLI, THREE_WAY, {"test": Split(HELD_OUT, labeled=False)}),
    "cola": glue(("sentence",), ("unacceptable", "acceptable")),
    "mnli": glue(
        NLI,
        THREE_WAY,
        {
            "train": Split(TRAIN),
            "validation_matched": Split(HELD_OUT),
            "validation_mismatched": Split(HELD_OUT + 2),
            "test_matched": Split(HELD_OUT, labeled=False),
            "test_mismatched": Split(HELD_OUT, labeled=False),
        },
    ),
    "mnli_matched": glue(NLI, THREE_WAY, {"validation": Split(HELD_OUT), "test": Split(HELD_OUT, labeled=False)}),
    "mnli_mismatched": glue(NLI, THREE_WAY, {"validation": Split(HELD_OUT), "test": Split(HELD_OUT, labeled=False)}),
    # The test labels of MRPC were published with the corpus it is made of.
    "mrpc": glue(TWO, ("not_equivalent", "equivalent"), LABELED),
    "qnli": glue(("question", "sentence"), ENTAILMENT),
    "qqp": glue(("question1", "question2"), ("not_duplicate", "duplicate")),
    "rte": glue(TWO, ENTAILMENT),
    "sst2": glue(("sentence",), ("negative", "positive")),
    "stsb": Config(
        Features({"sentence1": STRING, "sentence2": STRING, "label": Value("float32"), "idx": Value("int32")}),
        HIDDEN_TEST,
        _stsb,
        (5.0, 3.8, 2.6, 0.0),
        unlabeled=-1.0,
    ),
    "wnli": glue(TWO, ("not_entailment", "entailment")),
}

REPLICAS: dict[str, Replica] = {
    "google/boolq": Replica(
        {
            "default": Config(
                Features({"question": STRING, "answer": Value("bool"), "passage": STRING}),
                {"train": Split(TRAIN), "validation": Split(HELD_OUT)},
                _boolq,
                (True, False, True),
                label="answer",
            )
        },
        path="data/{split}-00000-of-00001.parquet",
    ),
    "Yelp/yelp_review_full": Replica(
        {
            "yelp_review_full": Config(
                Features({"label": classes("1 star", "2 star", "3 stars", "4 stars", "5 stars"), **TEXT}),
                {"train": Split(TRAIN * 2), "test": Split(HELD_OUT)},
                texts("text"),
                range(5),
            )
        }
    ),
    "stanfordnlp/imdb": Replica(
        {
            "plain_text": Config(
                Features({**TEXT, "label": classes("neg", "pos")}),
                {"train": Split(TRAIN), "test": Split(HELD_OUT), "unsupervised": Split(TRAIN, labeled=False)},
                texts("text"),
                range(2),
            )
        }
    ),
    "nyu-mll/glue": Replica(GLUE),
    # No YAML in the card; the names of the files are all that tells the splits.
    "SetFit/sst5": Replica(
        {
            "default": Config(
                Features({**TEXT, "label": Value("int64"), "label_text": STRING}),
                {"train": Split(TRAIN * 2), "validation": Split(HELD_OUT), "test": Split(HELD_OUT)},
                _sst5,
                (4, 1, 2, 3, 0),
            )
        },
        path="{split}.jsonl",
        card="none",
    ),
    "dair-ai/emotion": Replica(
        {
            name: Config(
                Features({**TEXT, "label": classes("sadness", "joy", "love", "anger", "fear", "surprise")}),
                splits,
                texts("text"),
                range(6),
            )
            for name, splits in (
                ("split", {**LABELED, "train": Split(TRAIN * 2)}),
                ("unsplit", {"train": Split(TRAIN * 3)}),
            )
        },
        default="split",
    ),
    "fancyzhx/ag_news": Replica(
        {
            "default": Config(
                Features({**TEXT, "label": classes("World", "Sports", "Business", "Sci/Tech")}),
                {"train": Split(TRAIN * 2), "test": Split(HELD_OUT)},
                texts("text"),
                range(4),
            )
        },
        path="data/{split}-00000-of-00001.parquet",
    ),
    # Laid out as many small repositories are: compressed csv, and nothing in the card.
    "tester/tickets": Replica(
        {
            "default": Config(
                Features({**TEXT, "label": Value("int64")}),
                {"train": Split(TRAIN), "test": Split(HELD_OUT)},
                texts("text"),
                range(2),
            )
        },
        path="{split}.csv.gz",
        card="none",
    ),
    "odegiber/hate_speech18": Replica(
        {
            "default": Config(
                Features(
                    {
                        **TEXT,
                        **dict.fromkeys(("user_id", "subforum_id", "num_contexts"), Value("int64")),
                        "label": classes("noHate", "hate", "idk/skip", "relation"),
                    }
                ),
                {"train": Split(TRAIN * 2)},
                _hate,
                range(4),
            )
        },
        card="none",
        script=True,
        conversion=True,
    ),
    "aps/super_glue": Replica(
        {
            "boolq": glue(("question", "passage"), ("False", "True")),
            "cb": glue(NLI, ("entailment", "contradiction", "neutral")),
            "rte": glue(NLI, ENTAILMENT),
        },
        card="none",
        script=True,
        conversion=True,
    ),
    "tester/scripted": Replica({}, card="none", script=True),
}
"""By repository."""
