"""Names from strangers' files that become paths: none leads out of its folder, in studies, runs and exports."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from facts import hftune_error, mentions
from finished_run import finished_run
from hypothesis import given
from hypothesis import strategies as st

from hftune.errors import HftuneError
from hftune.files import checked_name, file_name
from hftune.studies.folder import StudyDir
from hftune.studies.plan import Plan, setting_of, stage_path
from hftune.studies.request import make_plan, plan_study

Hftune = Callable[..., tuple[int, str, str]]

HOSTILE = [
    "../../evil",
    "..",
    ".",
    "",
    "/tmp/evil",
    "a/b",
    "a\\b",
    "C:evil",
    ".hidden",
    "a.",
    "nul",
    "COM1.txt",
    "a\0b",
]


@given(st.text(st.characters(), max_size=200))
def test_any_text_becomes_the_name_of_one_file(text: str) -> None:
    name = file_name(text)
    assert re.fullmatch(r"[\w=+-][\w.=+-]*", name) and not name.endswith(".") and len(name.encode()) <= 129
    assert Path("folder", name).parent == Path("folder") and file_name(name) == name
    assert checked_name(name, "the run") == name


def test_long_names_that_differ_at_their_end_stay_apart() -> None:
    assert file_name("x" * 300 + "a") != file_name("x" * 300 + "b")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_study_writes_nothing_outside_its_folder(here: Path, hftune: Hftune, name: str) -> None:
    work = here / "deep" / "work"
    work.mkdir(parents=True)
    stage: dict[str, Any] = {name: {"set": {"task.kind": "mlm", "train.max_steps": 1}}}
    plan = {
        "depends_on": stage,
        "grid": {"model.model_name_or_path": [f"run:{name}"]},
        "seeds": [1],
        "set": {"train.max_steps": 1},
    }
    (work / "study.yaml").write_text(yaml.safe_dump(plan))
    before = sorted(here.rglob("*"))
    code, _, err = hftune("sweep", str(work / "study.yaml"), "--output", str(work / "runs" / "study"))
    assert code == 2 and mentions(err, "name of a file") and "depends_on" in err, err
    assert sorted(here.rglob("*")) == before
    with hftune_error("name of a file"):
        stage_path(work / "runs" / "study", name, 1)


@pytest.mark.parametrize("value", [*HOSTILE, "../" * 40 + "x", "ü" * 300])
def test_a_setting_of_a_study_is_one_folder(tmp_path: Path, value: str) -> None:
    setting = setting_of(Plan(grid={"data.dataset_name": [value]}), {"data.dataset_name": value})
    assert StudyDir(tmp_path).run(setting, 1).path.parent.parent == tmp_path / "runs"


def test_a_study_is_named_after_a_file_that_may_have_any_name(here: Path) -> None:
    content = "grid: {train.learning_rate: [1.0e-3]}\n"
    (here / "in").mkdir()
    for path in ("...yaml", "in/study.yaml", "in/../study.yaml"):
        Path(path).write_text(content)
        _, name = plan_study(path)
        assert Path("runs", name).parent == Path("runs") and name not in ("", "."), name
    assert name == file_name(here.name)


@pytest.mark.parametrize("run", ["..", ".", "runs/..", "/", "runs/a", "owner/model"])
def test_an_export_is_in_the_folder_of_exports(here: Path, run: str) -> None:
    name = file_name(Path(run).resolve().name)
    assert Path("exports", name).parent == Path("exports") and name not in ("..", ".", "")
    assert name == {"runs/a": "a", "owner/model": "model"}.get(run, name)


@pytest.mark.parametrize("split", HOSTILE)
def test_predictions_are_in_the_run(tmp_path: Path, split: str) -> None:
    run = finished_run(tmp_path / "run")
    for access in (run.predictions, run.read_predictions, lambda name: run.write_predictions(name, [])):
        with hftune_error("name of a file"):
            access(split)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"grid": {"a.b": {"low": "x", "high": 2}}}, {"grid.a.b": ["low", "high"]}),
        ({"grid": {"a.b": [[1], {"c": 2}]}}, {"grid.a.b": ["list of"]}),
        ({"grid": {"a.b": {"low": 2, "high": 1}}}, {"grid.a.b": ["expected low < high"]}),
        ({"grid": {"a": {"x": {"b.c": [1]}}}}, {"grid.a": ["named settings"]}),
        ({"grid": {}}, {"grid": ["mapping of"]}),
        ({}, {"grid": ["is missing"]}),
        (
            {"grid": {"a.b": [1]}, "seeds": ["x", "y"], "set": 3, "search": 0, "test": "some", "reference": [1]},
            {key: ["expected"] for key in ("seeds", "set", "search", "test", "reference")},
        ),
        (
            {"grid": {"a.b": [1]}, "depends_on": {"x": {"set": 3, "sett": 1}}},
            {"depends_on.x.set": ["got 3"], "depends_on.x.sett": ["unk"]},
        ),
        ({"grid": {"a.b": [1]}, "depend_on": {}}, {"depend_on": ["mean depends_on"]}),
    ],
)
def test_problems_of_a_study_name_its_own_keys(stated: dict[str, Any], expected: dict[str, list[str]]) -> None:
    with pytest.raises(HftuneError) as caught:
        make_plan(stated, "study.yaml")
    problems = {problem.path: str(problem) for problem in caught.value.problems}  # type: ignore[attr-defined]
    assert problems.keys() == expected.keys()
    for path, parts in expected.items():
        assert mentions(problems[path], *parts), problems[path]
    for internal in ("nullable", "union[", "function-after", "Input should", "valid dictionary", "Value error"):
        assert internal not in str(caught.value)
