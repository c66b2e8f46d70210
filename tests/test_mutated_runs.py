"""Mutated files of runs and models that somebody else made: each is read, or ends in our error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from finished_run import finished_run
from hypothesis import example, given
from hypothesis import strategies as st
from mutation import Edit, edited, edits, examples, survives, turned, turns

from hftune.hub.card import card_text
from hftune.hub.publish import describe_last_push
from hftune.models.adapter import WEIGHTS, open_adapter
from hftune.models.checkpoint import open_checkpoint
from hftune.models.classifier import Classifier
from hftune.models.hub_files import ADAPTER as CONFIG
from hftune.models.hub_files import ModelFiles, load_metadata
from hftune.models.load import load_config, load_tokenizer
from hftune.models.settings import ModelSection
from hftune.runs.directory import RunDir
from hftune.runs.report import write_report
from hftune.runs.run_record import RunRecord
from hftune.runs.schema import PushRecord, consistent

HISTORY = [
    {"step": 1, "epoch": 0.5, "loss": 1.0, "seconds": 0.1},
    {"step": 2, "epoch": 1.0, "split": "validation", "loss": 0.9},
]
FILES = ("metrics.json", "predictions/validation.jsonl", "history.jsonl", "environment.json", "recipe.yaml", "hub.json")
MODEL = ("hftune.json", "config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run that is in order; the tests put it in order again."""
    run = finished_run(tmp_path_factory.mktemp("somebody") / "run")
    run.history.write_text("".join(json.dumps(row) + "\n" for row in HISTORY))
    run.write_environment({"python": "3.11", "libraries": {"torch": "2"}, "cores": {"usable": 1, "total": 2}})
    run.write_published(PushRecord(repo="a/b", revision="main", commit="c" * 40, url="http://x/a/b", step=3))
    return run


def look(run: RunDir) -> None:
    """Everything that commands read of a run, but for drawing figures."""
    run.read_environment(), run.read_history(), describe_last_push(run, "a/b", "main")
    assert isinstance(run.complete, bool)
    RunRecord.read(run)
    with consistent(run.path):
        card_text(run)


@examples(250)
@given(name=st.sampled_from(FILES), changes=edits)
def test_bytes_of_a_run(made: RunDir, name: str, changes: list[Edit]) -> None:
    path = made.path / name
    before = path.read_bytes()
    path.write_bytes(edited(before, changes))
    try:
        survives(lambda: look(made))
    finally:
        path.write_bytes(before)


@examples(250)
@given(name=st.sampled_from([name for name in FILES if name.endswith("json")]), changes=turns)
def test_values_of_a_run(made: RunDir, name: str, changes: list[tuple[float, Any]]) -> None:
    path = made.path / name
    before = path.read_bytes()
    path.write_text(json.dumps(turned(json.loads(before), changes)))
    try:
        survives(lambda: look(made))
    finally:
        path.write_bytes(before)


@examples(8)
@given(changes=turns)
def test_the_page_of_a_run(made: RunDir, changes: list[tuple[float, Any]], tmp_path: Path) -> None:
    before = made.metrics.read_bytes()
    made.metrics.write_text(json.dumps(turned(json.loads(before), changes)))

    def page() -> None:
        with consistent(made.path):
            write_report(made, tmp_path / "page.html")

    try:
        survives(page)
    finally:
        made.metrics.write_bytes(before)


@examples(120)
@given(name=st.sampled_from(MODEL), changes=edits, values=st.one_of(st.none(), turns))
def test_files_of_a_model(made: RunDir, name: str, changes: list[Edit], values: Any) -> None:
    path = made.model / name
    before = path.read_bytes()
    whole = values is not None and name.endswith(".json")
    path.write_bytes(json.dumps(turned(json.loads(before), values)).encode() if whole else edited(before, changes))
    section = ModelSection(model_name_or_path=str(made.model))
    try:
        if name.startswith("tokenizer"):
            survives(lambda: load_tokenizer(section, [])(["great food"]))
        elif name == "hftune.json":
            survives(lambda: load_metadata(ModelFiles(str(made.model))))
        elif name == "config.json":
            survives(lambda: load_config(section, None))  # type: ignore[arg-type]
        else:
            survives(lambda: Classifier.load(str(made.model)))
    finally:
        path.write_bytes(before)


ADAPTER = {
    "base_model_name_or_path": "someone/encoder",
    "peft_type": "LORA",
    "revision": None,
    "target_modules": ["query"],
}


@examples(150)
@given(changes=edits, values=st.one_of(st.none(), turns))
@example(changes=[], values=[(0.75, True)])  # target_modules
@example(changes=[], values=[(0.0, "x" * 500)])  # the base
def test_the_configuration_of_an_adapter(
    changes: list[Edit], values: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "adapter"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / WEIGHTS).write_bytes(b"")
    content = json.dumps(ADAPTER).encode()
    (folder / CONFIG).write_bytes(
        edited(content, changes) if values is None else json.dumps(turned(ADAPTER, values)).encode()
    )
    found = survives(lambda: open_adapter(open_checkpoint(ModelSection(model_name_or_path=str(folder)))))
    if found is not None:  # whatever is in it, its base is on the Hub or next to it
        base = found.base.name
        climbs = ".." in Path(base).parts or base.startswith(("/", "~", "."))
        assert base == str(folder / "base") or not climbs
