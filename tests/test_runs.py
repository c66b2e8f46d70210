"""The run directory: what is free, what is a run, what was meant, and who may use it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from facts import hftune_error, mentions

from hftune.errors import HftuneError
from hftune.files import read_json, write_json
from hftune.recipe import Recipe, load_recipe, read_recipe
from hftune.runs.directory import RunDir, default_path, free_name, in_use, runs_in, safe
from hftune.runs.group import group_summary, seed_path, seed_runs, write_group

METRICS = {
    "task": "classify",
    "splits": {"validation": {"accuracy": 0.5, "per_class": {}}, "test": {"accuracy": 0.4}},
    "baselines": {"majority": {"validation": {"accuracy": 0.2}}},
    "speed": {"train_seconds": 10.0},
    "data": {"fingerprints": {"train": "a", "validation": "b"}},
    "collapsed": None,
    "verified": True,
    "seed": 1,
}


def finished(path: Path, **changes: object) -> RunDir:
    run = RunDir.create(path)
    run.write_recipe(Recipe())
    run.write_metrics(METRICS | changes)
    return run


def test_a_new_path_and_one_with_only_hidden_files_are_free(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / ".DS_Store").write_text("x")
    assert RunDir.create(hidden).path == hidden
    assert RunDir.create(tmp_path / "deep" / "er").path.is_dir()


def test_a_run_is_refused_with_resume_and_a_free_name(tmp_path: Path) -> None:
    path = finished(tmp_path / "a").path
    (tmp_path / "a-2").mkdir()
    before = sorted(path.iterdir())
    with hftune_error("run already") as error:
        RunDir.create(path)
    assert f"--output {path} --resume" in error.value.hint
    assert f"--output {tmp_path / 'a-3'}" in error.value.hint
    assert error.value.exit_code == 2
    assert sorted(path.iterdir()) == before


@pytest.mark.parametrize(
    "kind", ["file", "folder", pytest.param("dangling link", marks=pytest.mark.posix("makes symbolic links"))]
)
def test_any_other_file_there_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "taken"
    if kind == "file":
        path.write_text("mine")
    elif kind == "folder":
        path.mkdir()
        (path / "thesis.txt").write_text("mine")
    else:
        path.symlink_to(tmp_path / "nowhere")
    assert in_use(path)
    with hftune_error(str(path)) as error:
        RunDir.create(path)
    assert "--resume" in error.value.hint and "taken-2" in error.value.hint


def test_a_path_below_a_file_is_an_error_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with hftune_error(str(tmp_path / "file" / "run")):
        RunDir.create(tmp_path / "file" / "run")


def test_open_suggests_similar_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # runs of the current folder would be named
    finished(tmp_path / "classify-full")
    with hftune_error("clasify-full") as error:
        RunDir.open(tmp_path / "clasify-full")
    assert error.value.hint == f"did you mean {str(tmp_path / 'classify-full')!r}?"
    with hftune_error("1 run") as error:
        RunDir.open(tmp_path)
    assert str(tmp_path / "classify-full") in error.value.hint
    (tmp_path / "classify-full" / "notes").mkdir()
    with hftune_error("here") as error:
        RunDir.open(tmp_path / "classify-full" / "nothing" / "here")
    assert "hftune classify" in error.value.hint


def test_open_takes_the_run_and_a_path_inside_it(tmp_path: Path) -> None:
    run = finished(tmp_path / "a")
    run.model.mkdir()
    assert RunDir.open(run.path) == run
    assert RunDir.open(run.model) == run
    assert RunDir.open(run.metrics) == run


def test_complete_means_finished_and_verified(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "a")
    run.write_recipe(Recipe())
    assert not run.complete
    with hftune_error(str(run.path)) as error:
        run.read_metrics()
    assert "--resume" in error.value.hint
    run.write_metrics(METRICS | {"verified": False})
    assert not run.complete
    run.write_metrics(METRICS)
    assert run.complete and run.read_metrics() == {"version": 1, **METRICS}


@pytest.mark.parametrize(("version", "hint"), [({}, ["train", "again"]), ({"version": 2}, ["upgrade"])])
def test_metrics_of_another_version_are_refused(tmp_path: Path, version: dict[str, int], hint: list[str]) -> None:
    run = RunDir.create(tmp_path / "a")
    write_json(run.metrics, version | METRICS)
    with pytest.raises(HftuneError, match=r"metrics\.json") as caught:
        run.read_metrics()
    assert mentions(caught.value.hint, *hint)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "a")
    recipe = Recipe.model_validate({"train": {"seed": 7, "num_train_epochs": 2}})
    run.write_recipe(recipe)
    run.write_environment({"python": "3.11"})
    rows = [{"id": 0, "text": "naïve\u2028 ☕\n<b>", "gold": None, "label": "1", "probabilities": {"1": 1.0}}]
    run.write_predictions("validation", rows)
    assert read_recipe(run) == recipe
    assert run.read_environment() == {"python": "3.11"}
    assert run.read_predictions("validation") == rows
    assert run.read_predictions("test") == [] and run.read_history() == []
    assert run.predictions("validation") == tmp_path / "a" / "predictions" / "validation.jsonl"


def test_default_path_is_safe_and_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a checkout may hold runs of its own
    recipe = load_recipe(
        None, {"data.dataset_name": "../my data/Ünï réviews.csv", "model.model_name_or_path": "huawei-noah/TinyBERT_4L"}
    )
    first = default_path(recipe, tmp_path)
    assert first == tmp_path / "classify-Ünï-réviews-TinyBERT_4L-full-s1"
    first.mkdir()
    assert default_path(recipe, tmp_path) == tmp_path / f"{first.name}-2" == free_name(first)
    assert default_path(Recipe()).as_posix() == "runs/classify-reviews-scratch-bert-tiny-full-s1"
    assert default_path(Recipe(), group=True).as_posix() == "runs/classify-reviews-scratch-bert-tiny-full"


@pytest.mark.parametrize("text", ["..", "/", "a/../../etc", "x" * 500, "日本" * 100, "a\x1b[31m\n", "-rf"])
def test_safe_names_can_not_leave_their_folder(text: str) -> None:
    name = safe(text)
    assert name and not name.startswith((".", "-")) and len(name.encode()) <= 48
    assert "/" not in name and name.isprintable() and Path(name).name == name


def test_groups_give_mean_and_sample_std(tmp_path: Path) -> None:
    for seed, score in ((10, 0.7), (2, 0.5), (1, 0.6)):
        splits = {"validation": {"accuracy": score, "per_class": {"a": {}}}}
        finished(seed_path(tmp_path, seed), seed=seed, splits=splits, collapsed="one class" if seed == 2 else None)
    assert [run.name for run in seed_runs(tmp_path)] == [f"{tmp_path.name}/seed-{n}" for n in (1, 2, 10)]
    summary = write_group(tmp_path)
    assert summary == read_json(tmp_path / "group.json")
    accuracy = summary["splits"]["validation"]["accuracy"]
    assert accuracy["mean"] == pytest.approx(0.6) and accuracy["std"] == pytest.approx(0.1)
    assert accuracy["values"] == [0.6, 0.5, 0.7] and summary["seeds"] == [1, 2, 10]
    assert summary["collapsed"] == [2] and summary["verified"] is True
    assert "per_class" not in summary["splits"]["validation"]
    assert summary["seconds"]["mean"] == 10.0
    assert group_summary(seed_runs(tmp_path)[:1])["splits"]["validation"]["accuracy"]["std"] is None


def test_a_group_refuses_other_data_and_unfinished_runs(tmp_path: Path) -> None:
    first = finished(tmp_path / "seed-1")
    other = finished(tmp_path / "seed-2", data={"fingerprints": {"train": "a", "validation": "c"}})
    with hftune_error("validation"):
        group_summary([first, other])
    unfinished = RunDir.create(tmp_path / "seed-3")
    unfinished.write_recipe(Recipe())
    with hftune_error(str(unfinished.path)):
        group_summary([first, unfinished])
    with hftune_error("run"):
        group_summary([])


def test_runs_in_sorts_numbers_as_numbers(tmp_path: Path) -> None:
    for name in ("b", "seed-10", "seed-9", "a"):
        finished(tmp_path / name)
    (tmp_path / "not-a-run").mkdir()
    assert [run.path.name for run in runs_in(tmp_path)] == ["a", "b", "seed-9", "seed-10"]


HOLDER = """
import sys, time
from pathlib import Path
from hftune.runs.directory import exclusive
with exclusive(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(120)
"""


def test_what_a_run_leaves_that_was_killed_before_its_recipe_is_taken_up_and_cleared_away(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "a")
    run.checkpoints.mkdir()
    (run.path / ".lock").touch()
    assert RunDir.create(run.path) == run
    run.discard_if_not_begun()
    assert not run.path.exists()


def test_a_run_that_was_killed_after_its_recipe_gets_its_environment(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "a")
    run.write_recipe(load_recipe())
    run.begin(load_recipe(), {"hftune": "2"})
    run.begin(load_recipe(), {"hftune": "3"})
    assert run.read_environment()["hftune"] == "2"


def test_a_second_process_is_refused_and_a_killed_one_holds_nothing(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "a")
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(run.path)], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None and holder.stdout.readline() == "held\n"
            with hftune_error("process", holder.pid), run.locked():
                raise AssertionError("two processes hold one run directory")
        finally:
            holder.kill()
            holder.wait()
    assert (run.path / ".lock-owner").read_text() == f"{holder.pid}\n"
    with run.locked():
        assert (run.path / ".lock-owner").read_text() == f"{os.getpid()}\n"
        with hftune_error(f"process {os.getpid()}"), run.locked():
            raise AssertionError("one process holds one run directory twice")
    assert not (run.path / ".lock-owner").exists()
    assert not in_use(run.path)


def test_an_error_gives_the_lock_free(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "a")
    with pytest.raises(KeyError), run.locked():
        raise KeyError
    with run.locked():
        pass


def test_what_a_killed_process_was_writing_is_swept_away(tmp_path: Path) -> None:
    from hftune.files import STAGED, remove_staged, write_text

    write_text(tmp_path / "model" / "hftune.json", "{}")
    left = tmp_path / "model" / f".hftune.json.ab12{STAGED}"
    left.write_text("{")
    (tmp_path / ".lock").write_text("")
    weights = left.with_name(".tmpOSb7kP")  # as safetensors names a file that it is writing
    weights.write_text("half")
    kept = left.with_name(".tmp-notes")
    kept.write_text("mine")
    remove_staged(tmp_path)
    assert not weights.exists() and kept.exists()
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".lock", ".tmp-notes", "hftune.json", "model"]
