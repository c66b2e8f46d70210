"""``--task_name`` with the folders of the original GLUE download: columns, splits and headers as they are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny import stars_folder

Hftune = Any
PARSES = "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
MNLI = f"{PARSES} sentence1 sentence2".split()
PAIR = ["index", "sentence1", "sentence2"]
KINDS = ("matched.tsv", "mismatched.tsv")
PARSED = "{n}\t1\t2\tfiction\t(\t(\t(\t(\t"
MRPC = ["#1 ID", "#2 ID", "#1 String", "#2 String"]
# Task → the folder's files: name, header (None for none), and one example; {n} counts the examples, {y} is the label.
FOLDERS: dict[str, tuple[tuple[str, str], tuple[tuple[str, list[str] | None, str], ...]]] = {
    "cola": (
        ("0", "1"),
        (
            ("train.tsv", None, 'gj04\t{y}\t\t"Sentence {n}" he wrote.'),
            ("dev.tsv", None, "gj04\t{y}\t*\tThe sentence {n} dev."),
            ("test.tsv", ["index", "sentence"], "{n}\tThe sentence {n} test."),
            ("original/raw/in_domain_train.tsv", None, "gj04\t{y}\t\tElsewhere."),
        ),
    ),
    "sst2": (
        ("0", "1"),
        (
            ("train.tsv", ["sentence", "label"], "a film {n}\t{y}"),
            ("dev.tsv", ["sentence", "label"], "a dev film {n}\t{y}"),
            ("test.tsv", ["index", "sentence"], "{n}\ta test film {n}"),
        ),
    ),
    "mrpc": (
        ("0", "1"),
        (
            ("train.tsv", ["Quality", *MRPC], '{y}\t1\t2\t" He {n} " said\tHe {n} did'),
            ("dev.tsv", ["Quality", *MRPC], "{y}\t1\t2\tHe {n}\tHe dev {n}"),
            ("test.tsv", ["index", *MRPC], "{n}\t1\t2\tHe {n}\tHe test {n}"),
            ("dev_ids.tsv", None, "{n}\t2"),
            ("msr_paraphrase_train.txt", ["Quality", *MRPC], "{y}\t1\t2\tHe {n}\tHe"),
            ("msr_paraphrase_test.txt", ["Quality", *MRPC], "{y}\t1\t2\tHe {n}\tHe"),
        ),
    ),
    "qqp": (
        ("0", "1"),
        (
            (
                "train.tsv",
                ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
                "{n}\t1\t2\tWhy {n}?\tHow?\t{y}",
            ),
            (
                "dev.tsv",
                ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
                "{n}\t1\t2\tWhat {n}?\tHow?\t{y}",
            ),
            ("test.tsv", ["id", "question1", "question2"], "{n}\tWho {n}?\tHow?"),
        ),
    ),
    "qnli": (
        ("entailment", "not_entailment"),
        (
            ("train.tsv", ["index", "question", "sentence", "label"], "{n}\tWhat {n}?\tThis.\t{y}"),
            ("dev.tsv", ["index", "question", "sentence", "label"], "{n}\tWho {n}?\tThis.\t{y}"),
            ("test.tsv", ["index", "question", "sentence"], "{n}\tWhen {n}?\tThis."),
        ),
    ),
    "rte": (
        ("entailment", "not_entailment"),
        (
            ("train.tsv", [*PAIR, "label"], "{n}\tIt {n}.\tThis.\t{y}"),
            ("dev.tsv", [*PAIR, "label"], "{n}\tHe {n}.\tThis.\t{y}"),
            ("test.tsv", PAIR, "{n}\tShe {n}.\tThis."),
        ),
    ),
    "wnli": (
        ("0", "1"),
        (
            ("train.tsv", [*PAIR, "label"], "{n}\tIt {n}.\tThis.\t{y}"),
            ("dev.tsv", [*PAIR, "label"], "{n}\tHe {n}.\tThis.\t{y}"),
            ("test.tsv", PAIR, "{n}\tShe {n}.\tThis."),
        ),
    ),
    "mnli": (
        ("contradiction", "entailment", "neutral"),
        (
            ("train.tsv", [*MNLI, "label1", "gold_label"], PARSED + "It {n}.\tThis.\t{y}\t{y}"),
            *(
                (f"dev_{kind}", [*MNLI, "label1", "gold_label"], f"{PARSED}{kind} {{n}}.\tThis.\t{{y}}\t{{y}}")
                for kind in KINDS
            ),
            *((f"test_{kind}", MNLI, f"{PARSED}{kind} {{n}}.\tThis.") for kind in KINDS),
            ("diagnostic.tsv", ["index", "sentence1", "sentence2"], "{n}\tIt {n}.\tThis."),
        ),
    ),
}


@pytest.mark.parametrize("task", FOLDERS)
def test_the_folders_of_the_original_download(task: str, tmp_path: Path) -> None:
    from hftune.cli.options import resolve_settings
    from hftune.data.load import load
    from hftune.recipe import load_recipe

    labels, files = FOLDERS[task]
    for name, header, example in files:
        lines = [example.format(n=number, y=labels[number % len(labels)]) for number in range(12)]
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("\n".join([*(["\t".join(header)] if header else []), *lines]) + "\n")
    settings = resolve_settings({"task_name": task, "data_dir": str(tmp_path)}, "classify")
    recipe = load_recipe(None, settings, task="classify")
    splits = load(recipe.data)
    assert {name: len(rows) for name, rows in splits.named.items()} == {"train": 12, "validation": 12, "test": 12}
    assert splits.labels == labels
    assert splits.is_pair == (task not in ("cola", "sst2"))
    assert set(splits.train["label"]) == set(range(len(labels))) and set(splits.test["label"]) == {-1}
    first = {name: rows["text"][3] for name, rows in splits.named.items()}
    assert all("3" in text for text in first.values()) and len(set(first.values())) >= 2
    if task == "cola":
        assert first["train"] == '"Sentence 3" he wrote.'
    if task == "mnli":
        assert first["validation"] == "matched.tsv 3." and splits.validation["text_pair"][3] == "This."


def test_the_regression_task_of_glue_is_refused(hftune: Hftune, tmp_path: Path) -> None:
    code, _, err = hftune("classify", "--task_name", "stsb", "--data_dir", str(tmp_path))
    assert code == 2 and "regression" in err


def test_a_folder_with_the_name_of_an_embedded_dataset_is_the_folder(here: Path) -> None:
    from hftune.cli.options import resolve_settings
    from hftune.data.load import load
    from hftune.recipe import load_recipe

    stars_folder(here / "reviews")
    settings = resolve_settings({"task_name": "yelp", "data_dir": "reviews"}, "classify")
    splits = load(load_recipe(None, settings, task="classify").data)
    assert {name: len(rows) for name, rows in splits.named.items()} == {"train": 40, "validation": 40, "test": 40}
    assert splits.labels == ("1", "5")
