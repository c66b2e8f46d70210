"""hftune lab on the command line: what it prints and writes, how it ends, and how it reports mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from facts import hftune_error, mentions

from hftune.lab import run as lab_run
from hftune.lab.run import EXPERIMENTS, mathematics, run, select

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    """``all`` is three quick experiments."""
    few = {name: EXPERIMENTS[name] for name in ("copy", "average", "bptt")}
    monkeypatch.setattr(lab_run, "EXPERIMENTS", few)


@pytest.fixture
def broken(three: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The average is no longer what it was."""
    false = {"<b>the average</b> is reached": False, "so is v_a": False}
    wrong = replace(EXPERIMENTS["average"], statements=lambda _: false)
    monkeypatch.setitem(lab_run.EXPERIMENTS, "average", wrong)


def test_ls(hftune: Command) -> None:
    code, out, err = hftune("lab", "ls")
    assert (code, err) == (0, "")
    assert all(f"\n{name} " in out for name in EXPERIMENTS)
    code, out, _ = hftune("lab", "ls", "--json")
    listed = {entry["name"]: entry for entry in json.loads(out)}
    assert list(listed) == list(EXPERIMENTS)
    assert listed["copy"]["claim"] == EXPERIMENTS["copy"].claim
    assert listed["copy"]["settings"]["keys"] == {"default": 16, "meaning": "Number of keys and values."}


def test_one_experiment_prints_its_numbers_and_writes_nothing(hftune: Command, here: Path) -> None:
    code, out, err = hftune("lab", "run", "copy")
    assert (code, err) == (0, "")
    assert EXPERIMENTS["copy"].claim in out and "cosine of the nearest other key" in out and "copy: holds" in out
    assert list(here.iterdir()) == []


def test_json_settings_and_seed(hftune: Command, here: Path) -> None:
    code, out, _ = hftune("lab", "run", "copy", "--json", "--seed", "3", "--set", "keys=4", "-s", "scales=[1, 2, 30]")
    result = json.loads(out)
    assert code == 0
    assert (result["experiment"], result["seed"], result["holds"], result["violated"]) == ("copy", 3, True, [])
    assert (result["settings"]["keys"], result["settings"]["scales"]) == (4, [1, 2, 30])
    assert len(result["numbers"]["orthonormal"]) == 3
    other = json.loads(hftune("lab", "run", "copy", "--json", "--set", "keys=4", "--set", "scales=[1, 2, 30]")[1])
    assert other["numbers"]["orthonormal"] != result["numbers"]["orthonormal"]


@pytest.mark.renders
@pytest.mark.usefixtures("three")
def test_all_writes_one_page(hftune: Command, here: Path) -> None:
    code, out, err = hftune("lab", "run", "all", "--set", "copy.keys=5")
    assert (code, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines()[:3]] == [[n, "holds"] for n in ("copy", "average", "bptt")]
    assert out.splitlines()[3] == str(Path("lab", "lab.html"))
    files = {str(path.relative_to(here)) for path in here.rglob("*") if path.is_file()}
    assert files == {"lab/lab.html", "lab/lab.json", *(f"lab/plots/{n}.png" for n in ("copy", "average", "bptt"))}
    results = json.loads((here / "lab/lab.json").read_text(encoding="utf-8"))["results"]
    assert [result["settings"].get("keys") for result in results] == [5, 16, None]
    page = (here / "lab/lab.html").read_text(encoding="utf-8")
    assert "All 3 claims hold." in page and page.count("<svg") == 3
    assert "hftune lab run copy --seed 0 --set &#39;keys=5&#39;" in page
    assert all(question.split("'")[0] in page for question in EXPERIMENTS["bptt"].questions)


@pytest.mark.usefixtures("broken")
def test_a_claim_that_fails_ends_with_1_after_everything_was_written(hftune: Command, here: Path) -> None:
    code, out, err = hftune("lab", "run", "all", "--output", "there", "--json")
    assert code == 1
    assert [result["holds"] for result in json.loads(out)["results"]] == [True, False, True]
    assert mentions(err, "1 claim does not hold") and "average: so is v_a" in err and "→" in err
    page = (here / "there/lab.html").read_text(encoding="utf-8")
    assert "2 of 3 claims hold." in page and "A claim does not hold." in page
    assert "&lt;b&gt;the average&lt;/b&gt; is reached" in page and "<b>the average" not in page


@pytest.mark.usefixtures("broken")
def test_a_single_claim_that_fails_ends_with_1(hftune: Command) -> None:
    code, out, err = hftune("lab", "run", "average")
    assert code == 1 and "average: does not hold" in out and "so is v_a" in err


def test_settings_that_break_a_claim_are_named(hftune: Command) -> None:
    code, _, err = hftune("lab", "run", "copy", "--set", "scales=[1, 2]")
    assert code == 1 and "6 digits" in err and "defaults" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["avarage"], ["no experiment 'avarage'", "mean 'average'", "copy, average"]),
        (["copy", "--set", "key=8"], ["copy.key", "mean 'keys'"]),
        (["copy", "--set", "zzz=8"], ["keys, dimension, scales"]),
        (["copy", "--set", "keys=many"], ["copy.keys", "≥ 3", "'many'"]),
        (["copy", "--set", "keys=2"], ["copy.keys", "≥ 3", 2]),
        (["copy", "--set", "keys=true"], ["copy.keys", "≥ 3", "true"]),
        (["copy", "--set", "keys=99"], ["99 keys", 16]),
        (["copy", "--set", "scales=[1]"], ["copy.scales: ", "at least 2 items"]),
        (["copy", "--set", "scales=[1, x]"], ["copy.scales.1: ", "got 'x'"]),
        (["average", "--set", "subspace=20"], ["orthogonal", 32]),
        (["copy", "--set", "scales=[2, 1]"], ["copy.scales", "greater"]),
        (["copy", "--set", "scales=[1, 900]"], ["copy.scales.1: ", 500]),
        (["argmax", "--set", "temperatures=[1, 0]"], ["argmax.temperatures.1: "]),
        (["argmax", "--set", "temperatures=[1, 2]"], ["less"]),
        (["complexity", "--set", "heads=3"], ["3 heads", "hidden_size 32"]),
        (["low-rank", "--set", "ranks=[64, 96]"], ["rank", 32]),
        (["random-features", "--set", "angles=[0, 90]"], ["random-features.angles.0: "]),
        (["copy", "--set", "keys"], ["expected KEY=VALUE, got 'keys'"]),
        (["copy", "--set", "average.keys=8"], ["average.keys", "copy"]),
        (["all", "--set", "keys=8"], ["expected EXPERIMENT.KEY=VALUE"]),
        (["all", "--set", "avarage.keys=8", "--set", "copy.key=1"], ["mean 'average'", "2 problems"]),
        (["copy", "--seed", "-1"], ["--seed"]),
    ],
)
def test_mistakes_are_named_before_anything_runs(
    hftune: Command, here: Path, arguments: list[str], words: list[str | int]
) -> None:
    code, out, err = hftune("lab", "run", *arguments)
    assert (code, out) == (2, "")
    assert mentions(err, *words), err
    assert list(here.iterdir()) == []


def test_an_output_that_is_a_file_is_refused(hftune: Command, here: Path) -> None:
    (here / "taken").write_text("mine", encoding="utf-8")
    code, _, err = hftune("lab", "run", "copy", "--output", "taken")
    assert code == 2 and mentions(err, "taken is a file")
    assert (here / "taken").read_text(encoding="utf-8") == "mine"


def test_numbers_that_are_not_finite_are_no_result() -> None:
    experiment = EXPERIMENTS["copy"]
    wrong = replace(experiment, measure=lambda *_: {"orthonormal": [float("nan")]})
    with hftune_error("copy", code=1):
        run(wrong, experiment.settings())


def test_python_callers_get_the_same_errors() -> None:
    with hftune_error("nothing"):
        select("nothing")


def test_mathematics_keeps_formulas_apart() -> None:
    text = "title: one.\n\nTwo lines\nof prose.\n\n    a = b\n      c = d\n\nEnd.\n"
    assert mathematics(text) == [(False, "Two lines of prose."), (True, "a = b\n  c = d"), (False, "End.")]
