"""Links in a run, a group of seeds or a study: refused before anything is written, and nothing elsewhere changes."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from facts import hftune_error, mentions
from finished_run import finished_run
from sample_study import plant_study
from tiny import QUICK, csv_folder
from tiny_qa import BORN, plant
from tiny_qa import rows as questions

from hftune import portability
from hftune.files import entries, refuse_links, remove_staged, share
from hftune.runs.directory import RunDir
from hftune.studies.executors import SlurmExecutor
from hftune.studies.folder import StudyDir, begun
from hftune.studies.plan import Plan
from hftune.training.checkpoints import fault

pytestmark = pytest.mark.posix("makes symbolic links")

Hftune = Callable[..., tuple[int, str, str]]
State = dict[str, tuple[int, bytes]]


def state(folder: Path) -> State:
    """Everything below a folder: name, mode, and bytes or where a link leads."""
    found: State = {}
    for path in folder.rglob("*"):
        content = os.fsencode(path.readlink()) if path.is_symlink() else b"" if path.is_dir() else path.read_bytes()
        found[path.relative_to(folder).as_posix()] = (path.lstat().st_mode, content)
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, and a run that was stopped after its last checkpoint: it has no scores yet."""
    from typer.testing import CliRunner

    from hftune.cli import commands as cli

    home = tmp_path_factory.mktemp("trained")
    csv_folder(home / "data")
    result = CliRunner().invoke(cli.app, command(home, home / "run"), prog_name="hftune")
    assert result.exit_code == 0, result.output
    for name in ("metrics.json", "report.html"):
        (home / "run" / name).unlink()
    return home


def command(home: Path, run: Path, *more: str) -> list[str]:
    return ["classify", "--data", str(home / "data"), *QUICK, "--output", str(run), *more]


@pytest.fixture
def run(trained: Path, here: Path) -> Path:
    return Path(shutil.copytree(trained / "run", here / "run"))


@pytest.fixture
def private(here: Path) -> Path:
    """A file and a Trainer's output that belong to the user and have nothing to do with the run."""
    folder = here / "private"
    folder.mkdir()
    (folder / "key").write_bytes(b"PRIVATE KEY")
    (folder / "key").chmod(0o600)
    for step in (500, 1000, 1500, 2000):
        checkpoint = folder / "trainer" / f"checkpoint-{step}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "model.safetensors").write_bytes(b"weeks of work")
    return folder


def put_link(link: Path, target: Path) -> None:
    """A link in place of whatever is there."""
    if link.is_dir():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)


ATTACKS = {
    "a file of the model": ("model/config.json", "key"),
    "a file beside the model": ("model/x", "key"),
    "checkpoints": ("checkpoints", "trainer"),
    "one checkpoint": ("checkpoints/checkpoint-3", "trainer/checkpoint-500"),
    "deep inside": ("checkpoints/.staging/a/b/c/d", "key"),
    "the model": ("model", "trainer"),
    "the history": ("history.jsonl", "key"),
    "the lock": (".lock", "key"),
    "figures": ("plots", "trainer"),
    "the recipe": ("recipe.yaml", "recipe.yaml"),
    "nothing yet": ("samples.jsonl", "not-there"),
}


@pytest.mark.parametrize(("name", "target"), ATTACKS.values(), ids=ATTACKS)
def test_a_link_in_a_run_is_refused_before_anything_is_written(
    trained: Path, run: Path, private: Path, hftune: Hftune, name: str, target: str
) -> None:
    shutil.copy(run / "recipe.yaml", private / "recipe.yaml")
    put_link(run / name, private / target)
    before = state(run), state(private)
    code, _, err = hftune(*command(trained, run, "--resume"))
    assert (state(run), state(private)) == before
    plain = "".join(err.split())
    assert code == 2 and "".join(str(run / name).split()) in plain and str(private / target) in plain, err


@pytest.mark.parametrize("name", ["model/config.json", "history.jsonl", ".lock"])
def test_a_hard_link_is_refused_where_files_are_changed_in_place(
    trained: Path, run: Path, private: Path, hftune: Hftune, name: str
) -> None:
    (run / name).unlink(missing_ok=True)
    (run / name).hardlink_to(private / "key")
    before = state(run), state(private)
    code, _, err = hftune(*command(trained, run, "--resume"))
    assert (state(run), state(private)) == before
    assert code == 2 and "hard link" in err and Path(name).name in err, err


def test_a_complete_run_is_not_exempt(here: Path, private: Path, hftune: Hftune) -> None:
    run = finished_run(here / "run").path
    put_link(run / "plots", private / "trainer")
    before = state(run), state(private)
    assert hftune("classify", "--output", str(run), "--resume")[0] == 2
    assert (state(run), state(private)) == before


def test_a_new_run_in_a_folder_with_hidden_links(trained: Path, here: Path, private: Path, hftune: Hftune) -> None:
    """Hidden files and empty folders do not count as being in use, but links among them are links."""
    (private / "empty").mkdir()
    for name, target in ((".lock", "key"), (".hub", "trainer"), ("checkpoints", "empty")):
        put_link(here / "new" / name, private / target)
        before = state(here / "new"), state(private)
        code, _, err = hftune(*command(trained, here / "new"))
        assert (state(here / "new"), state(private)) == before
        assert code == 2 and mentions(err, "is a link"), err
        (here / "new" / name).unlink()


def test_a_run_whose_path_is_a_link_resumes(trained: Path, here: Path, hftune: Hftune) -> None:
    """Such as runs → /scratch/runs, or one run that was moved to another disk."""
    (here / "scratch").mkdir()
    shutil.copytree(trained / "run", here / "scratch" / "run")
    (here / "runs").symlink_to(here / "scratch")
    (here / "runs" / "latest").symlink_to("run")
    code, _, err = hftune(*command(trained, here / "runs" / "latest", "--resume"))
    assert code == 0 and (here / "scratch" / "run" / "report.html").is_file(), err
    assert hftune("report", str(here / "runs" / "latest"))[0] == 0
    assert (here / "runs" / "latest").is_symlink()


def test_checkpoints_of_others_are_ignored(trained: Path, run: Path, private: Path, hftune: Hftune) -> None:
    """Real folders, not links: not loaded, not counted, not removed; one where a step is saved is moved aside."""
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(private / "trainer", run / "checkpoints")
    (run / "checkpoints" / "checkpoint-500").rename(run / "checkpoints" / "checkpoint-4")
    (run / "checkpoints" / "checkpoint-1000" / "manifest.json").write_text('{"step": 1000}')
    foreign = state(run / "checkpoints")
    code, _, err = hftune(*command(trained, run, "--resume"))
    assert code == 0, err
    for name in ("checkpoint-4", "checkpoint-1000", "checkpoint-1500", "checkpoint-2000"):
        (line,) = [line for line in err.replace("\n  ", " ").splitlines() if f"{name}:" in line]
        assert "manifest.json" in line, err
    after = state(run / "checkpoints")
    assert fault(run / "checkpoints" / "checkpoint-4") is None
    for name, found in foreign.items():
        assert after[name.replace("checkpoint-4", "checkpoint-4-unknown")] == found, name


@pytest.mark.parametrize("what", ["report", "push", "evaluate", "compare"])
def test_every_other_command_refuses_such_a_run(here: Path, private: Path, hftune: Hftune, what: str) -> None:
    run = finished_run(here / "run").path
    put_link(run / "plots", private / "trainer")
    (private / "trainer" / "holiday.png").write_bytes(b"mine")
    before = state(run), state(private)
    code, _, err = hftune(what, str(run), *(["me/name"] if what == "push" else []))
    assert (state(run), state(private)) == before
    assert code == 2 and "plots" in err and mentions(err, "is a link"), err


def test_answers_are_not_written_through_a_link(here: Path, private: Path, hftune: Hftune) -> None:
    (here / "births").mkdir()
    for split in ("train", "validation"):
        (here / "births" / f"{split}.tsv").write_text(questions(list(BORN)))
    run = plant(here / "run", here / "births").path
    put_link(run / "predictions", private)
    before = state(run), state(private)
    code, _, err = hftune("evaluate", str(run), "--split", "validation")
    assert (state(run), state(private)) == before
    assert code == 2 and mentions(err, "is a link"), err


def test_a_group_of_seeds(trained: Path, run: Path, here: Path, private: Path, hftune: Hftune) -> None:
    """A seed that is a link, and a link inside a seed that would only be reached after the first is trained."""
    shutil.copytree(run, here / "group" / "seed-1")
    put_link(here / "group" / "seed-2", run)
    resume = command(trained, here / "group", "--seeds", "1,2", "--resume")
    for arguments in (resume, ["report", str(here / "group")]):
        before = state(here / "group"), state(run)
        code, _, err = hftune(*arguments)
        assert (state(here / "group"), state(run)) == before
        assert code == 2 and mentions(" ".join(err.split()), "seed-2 is a link"), err
    (here / "group" / "seed-2").unlink()
    shutil.copytree(run, here / "group" / "seed-2")
    put_link(here / "group" / "seed-2" / "checkpoints", private / "trainer")
    before = state(here / "group"), state(private)
    code, _, err = hftune(*resume)
    assert (state(here / "group"), state(private)) == before
    assert code == 2 and mentions(" ".join(err.split()), "checkpoints is a link"), err


PLAN = Plan(grid={"train.num_train_epochs": [1.0]}, seeds=(1,))


@pytest.mark.parametrize("name", ["plots", "logs", "runs/num_train_epochs=1/seed-1/model", "trials.jsonl"])
def test_a_study(here: Path, private: Path, hftune: Hftune, name: str) -> None:
    plant_study(here / "study", PLAN, {"num_train_epochs=1": 0.7})
    assert (here / "study" / "runs" / "num_train_epochs=1" / "seed-1").is_dir()
    put_link(here / "study" / name, private / "trainer")
    (private / "trainer" / "holiday.png").write_bytes(b"mine")
    (here / "plan.yaml").write_text(yaml.safe_dump(PLAN.model_dump(mode="json", exclude_defaults=True)))
    before = state(here / "study"), state(private)
    sweep = ["sweep", str(here / "plan.yaml"), "--output", str(here / "study")]
    for arguments in (sweep, [*sweep, "--dry-run"], ["report", str(here / "study")], ["compare", str(here / "study")]):
        code, _, err = hftune(*arguments)
        assert (state(here / "study"), state(private)) == before
        assert code == 2 and mentions(" ".join(err.split()), "is a link"), err


def test_a_new_study_and_a_comparison(here: Path, private: Path, hftune: Hftune) -> None:
    put_link(here / "new" / ".lock", private / "key")
    with hftune_error("is a link"), begun(here / "new", PLAN):
        pass
    run = finished_run(here / "run").path
    (here / "compared").mkdir()
    (here / "compared" / "comparison.json").write_text("{}")
    put_link(here / "compared" / "plots", private / "trainer")
    before = state(here)
    assert hftune("compare", str(run), "--output", str(here / "compared"))[0] == 2
    assert state(here) == before


def test_a_study_on_a_cluster_leaves_no_links(tmp_path: Path) -> None:
    """submitit keeps a link to each job script, and the study would be refused when it is continued."""
    (tmp_path / "7_submission.sh").write_text("#!/bin/bash\n")

    def submit(*_: Any) -> Any:
        (tmp_path / ".submission_file_ab.sh").symlink_to(tmp_path / "7_submission.sh")
        paths = SimpleNamespace(folder=tmp_path)
        return SimpleNamespace(paths=paths, job_id="7", done=lambda: True, result=lambda: {"state": "done"})

    hand = SlurmExecutor(SimpleNamespace(submit=submit), threading.Lock(), 0.0)
    assert hand.run({"path": str(tmp_path / "run")}, lambda job, news: True) == {"state": "done"}
    refuse_links(tmp_path, "a study", in_place=True)
    assert [path.name for path in tmp_path.iterdir()] == ["7_submission.sh"]


def test_a_model_folder_that_is_a_link_is_not_read(here: Path, hftune: Hftune) -> None:
    run = finished_run(here / "run").path
    (run / "model").rename(here / "elsewhere")
    (run / "model").symlink_to(here / "elsewhere")
    code, _, err = hftune("predict", str(run), "great food")
    assert code == 2 and "leads out" in err, err


def test_predictions_are_not_staged_through_a_link(here: Path, private: Path, hftune: Hftune) -> None:
    run = finished_run(here / "run").path
    (here / ".out.jsonl.part").symlink_to(private / "key")
    before = state(private)
    code, _, err = hftune("predict", str(run), "great food", "--output", str(here / "out.jsonl"))
    assert code == 0 and state(private) == before and not (here / "out.jsonl").is_symlink(), err


def test_modes_are_not_changed_through_links(tmp_path: Path, private: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "own").write_text("")
    (folder / "own").chmod(0o600)
    (folder / "link").symlink_to(private / "key")
    (folder / "hard").hardlink_to(private / "key")
    (folder / "inner").symlink_to(private / "trainer")
    before = state(private)
    share(folder)
    share(folder / "link")
    assert state(private) == before
    assert (folder / "own").stat().st_mode & 0o044


def test_what_was_being_written_is_a_file(tmp_path: Path, private: Path) -> None:
    for name in ("folder", "file", "link"):
        path = tmp_path / "run" / f".{name}.staged"
        path.parent.mkdir(exist_ok=True)
        {"folder": path.mkdir, "file": path.touch, "link": lambda p=path: p.symlink_to(private / "key")}[name]()
    before = state(private)
    remove_staged(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".folder.staged"]
    assert state(private) == before


def test_which_files_are_checked_for_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any depth, circles, folders that can't be listed, and files that disappear."""
    deep = tmp_path / "deep"
    (deep / "a" / "b" / "c" / "d").mkdir(parents=True)
    (deep / "a" / "b" / "c" / "d" / "x").symlink_to("/")
    with hftune_error("link to /"):
        refuse_links(deep, "a run directory")
    refuse_links(deep, "a run directory", depth=4)
    flat = tmp_path / "flat"
    (flat / "closed").mkdir(parents=True)
    (flat / "circle").symlink_to("circle")
    with hftune_error("link to circle"):
        refuse_links(flat, "a run directory")
    (flat / "circle").unlink()
    assert list(entries(tmp_path / "absent")) == []
    access = os.access
    for entered in (False, True):

        def listing(self: Path) -> Any:
            if self.name == "closed":
                raise PermissionError(13, "Permission denied")
            return iter([self / "closed", self / "gone"])

        monkeypatch.setattr(Path, "iterdir", listing)
        monkeypatch.setattr(
            os, "access", lambda path, mode, entered=entered: entered if path.name == "closed" else access(path, mode)
        )
        if entered:
            with hftune_error("Permission denied"):
                refuse_links(flat, "a run directory")
        else:
            refuse_links(flat, "a run directory", in_place=True)
        monkeypatch.undo()


def test_a_junction_of_windows_is_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks like a folder, with another reparse tag."""
    found = tmp_path.lstat()
    assert not portability.is_link(tmp_path) and not portability.is_link(tmp_path / "absent")
    junction = SimpleNamespace(st_mode=found.st_mode, st_reparse_tag=portability.JUNCTION)
    monkeypatch.setattr(os, "lstat", lambda path: junction)
    assert portability.is_link(tmp_path)


def test_a_run_and_a_study_without_links_open(here: Path) -> None:
    run = finished_run(here / "run").path
    assert RunDir.open(run, to_train=True).path == run
    assert RunDir.open(run / "model", to_train=True).path == run
    plant_study(here / "study", PLAN, {"num_train_epochs=1": 0.7})
    assert StudyDir.open(here / "study").path == here / "study"
    os.link(run / "environment.json", here / "copy.json")
    assert RunDir.open(run).path == run  # what replaces files breaks no hard link
