"""Recipes, studies and runs that somebody else wrote can ask for trust, but not grant it to themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from facts import hftune_error, mentions
from finished_run import finished_run
from tiny import csv_folder

from hftune.evaluation import metrics
from hftune.pipeline.request import resolve_recipe
from hftune.recipe import load_recipe

Hftune = Callable[..., tuple[int, str, str]]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SCRIPT = "from pathlib import Path\nPath({!r}).touch()\n"

ASKING = {
    "trust_remote_code": (
        {"model": {"model_name_or_path": "folder", "trust_remote_code": True}},
        "--trust-remote-code",
    ),
    "trust_base_code": (
        {"model": {"model_name_or_path": "folder", "trust_base_code": f"a/b@{COMMIT}"}},
        f"--trust-base-code a/b@{COMMIT}",
    ),
    "a script": ({"task": {"kind": "classify", "metrics": ["./evil.py"]}}, "task.metrics=[./evil.py]"),
    "a metric of the Hub": ({"task": {"metrics": [f"a/b@{COMMIT}"]}}, f"task.metrics=[a/b@{COMMIT}]"),
}


@pytest.mark.parametrize("what", ASKING)
def test_a_recipe_can_not_grant_trust(here: Path, hftune: Hftune, what: str) -> None:
    stated, flag = ASKING[what]
    Path("recipe.yaml").write_text(yaml.safe_dump({"task": {"kind": "classify"}, **stated}), encoding="utf-8")
    Path("evil.py").write_text(SCRIPT.format(str(here / "ran")), encoding="utf-8")
    code, _, err = hftune("classify", "--recipe", "recipe.yaml", "--dry-run")
    assert code == 2 and mentions(err, "code", "file", flag)
    assert not (here / "ran").exists()
    # Reading is not running: it can be looked at and checked.
    assert hftune("recipes", "validate", "recipe.yaml")[0] == 0


@pytest.mark.parametrize(
    "typed",
    [
        {"overrides": {"model.trust_remote_code": True}},
        {"sets": ["model.trust_remote_code=true"]},
        {"sets": ["model={model_name_or_path: folder, trust_remote_code: true}"]},
    ],
)
def test_what_was_typed_counts(here: Path, typed: dict[str, object]) -> None:
    Path("recipe.yaml").write_text("model: {model_name_or_path: folder, trust_remote_code: true}\n", encoding="utf-8")
    made = resolve_recipe("recipe.yaml", **{"overrides": {}, **typed}, task="classify")  # type: ignore[arg-type]
    assert made.model.trust_remote_code
    # Switched off it is off, whatever is in the file.
    assert not resolve_recipe("recipe.yaml", {"model.trust_remote_code": False}).model.trust_remote_code


def test_a_study_can_not_grant_trust(here: Path, hftune: Hftune) -> None:
    csv_folder(here / "rows")
    for stated in ("set: {model.trust_remote_code: true}", "set: {data.dataset_name: rows}"):
        Path("study.yaml").write_text(
            f"{stated}\ngrid: {{train.learning_rate: [1.0e-3]}}\nseeds: [1]\nrecipe: base.yaml\n", encoding="utf-8"
        )
        Path("base.yaml").write_text(
            "task: {metrics: [./evil.py]}\n" if "rows" in stated else "task: {kind: classify}\n", encoding="utf-8"
        )
        code, _, err = hftune("sweep", "study.yaml")
        assert code == 2 and mentions(err, "code", "file"), err
        assert not (here / "runs").exists()


def test_resuming_needs_the_flag_again(here: Path, hftune: Hftune) -> None:
    run = finished_run(here / "run")
    run.write_recipe(load_recipe(None, {"model.trust_remote_code": True}))
    code, _, err = hftune("classify", "--output", "run", "--resume")
    assert code == 2 and "--trust-remote-code" in err
    code, _, err = hftune("classify", "--output", "run", "--resume", "--trust-remote-code")
    assert code == 0 and "complete" in err, err
    run.write_recipe(load_recipe(None, {"model.trust_base_code": f"a/b@{COMMIT}"}))
    code, _, err = hftune("classify", "--output", "run", "--resume")
    assert code == 2 and f"--trust-base-code a/b@{COMMIT}" in err
    code, _, err = hftune("classify", "--output", "run", "--resume", "--trust-base-code", f"a/b@{COMMIT}")
    assert code == 0 and "complete" in err, err


def test_evaluate_does_not_inherit_trust(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hftune.models.settings import NO_TRUST, ModelSection, Trust
    from hftune.pipeline import inference
    from hftune.tasks.task import EvaluationRequest

    run = finished_run(here / "run")
    granted = {"model.trust_remote_code": True, "model.trust_base_code": f"a/b@{COMMIT}"}
    run.write_recipe(load_recipe(None, {"task.kind": "span", **granted}))
    seen: list[object] = []

    class Stop(Exception):
        pass

    class Task:
        def __init__(self, recipe: object) -> None:
            seen.append(recipe.model.trust)  # type: ignore[attr-defined]
            raise Stop

        @staticmethod
        def score(*_: object) -> None:
            return None

    monkeypatch.setattr(inference, "task_class", lambda kind: Task)
    monkeypatch.setattr(inference, "kind_of", lambda *_: "span")
    typed: list[Trust] = [NO_TRUST, {"trust_remote_code": True, "trust_base_code": f"c/d@{COMMIT}"}]
    for trust in typed:
        with pytest.raises(Stop):
            inference.evaluate(EvaluationRequest("run", ModelSection(model_name_or_path="run", **trust)))
    assert seen == typed


@pytest.mark.parametrize("name", ["f1", "someone/metric", "someone/metric@main", f"f1@{COMMIT[:8]}"])
def test_a_metric_of_the_hub_runs_only_at_a_commit(here: Path, name: str) -> None:
    with hftune_error("code", "Hub", "today") as caught:
        metrics.load_metric(name)
    assert "@COMMIT" in caught.value.hint


@pytest.mark.parametrize("name", ["someone/metric", f"someone/metric@{COMMIT}", "frobnicate"])
def test_a_metric_name_never_runs_a_file_of_the_current_folder(here: Path, name: str) -> None:
    place = here / name.partition("@")[0]
    place.mkdir(parents=True)
    (place / f"{place.name}.py").write_text(SCRIPT.format(str(here / "ran")))
    with hftune_error("current folder"):
        metrics.load_metric(name)
    assert not (here / "ran").exists()
