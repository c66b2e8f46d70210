"""The benchmarks of benchmarks/: how turns are taken, ratios computed and results saved. No speed is asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import harness
import inference
import numpy as np
import overhead
import pytest
import training
from facts import mentions
from harness import FULL, QUICK, Case, Comparison, Contestant, Goal, Scale, Timing, measure, temporary_cache, timed
from workloads import texts, write_dataset

from hftune.errors import HftuneError
from hftune.files import read_json

CASES = {case.name: case for script in (training, inference, overhead) for case in script.CASES}
MACHINE = {"cpu": "a processor", "cores": 2, "threads": 2, "load": 0.1, "versions": {"torch": "1"}}


def case(contestants: Callable[[Path, Scale], Mapping[str, Contestant]], *goals: Goal, **more: Any) -> Case:
    return Case("made-up", "made-up work", "examples", goals or (Goal("theirs", least=2),), contestants, **more)


def taking(*seconds: tuple[float, float]) -> Contestant:
    """A contestant whose turns take these wall and CPU seconds, one after the other."""
    given = iter(seconds)
    return lambda: Timing(100, *next(given))


def goal_of(result: Comparison, clock: str, index: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = result.as_dict(clock)["goals"][index]
    return found


def test_turns_alternate_and_warm_ups_do_not_count() -> None:
    calls: list[str] = []

    def contestant(name: str) -> Contestant:
        def turn() -> Timing:
            calls.append(name)
            return Timing(1, 1, 1)

        return turn

    made = case(lambda *_: {"ours": contestant("o"), "theirs": contestant("t")}, warm_ups=1)
    result = measure(made, FULL, repeats=2)
    assert "".join(calls) == "to" + "ot" + "to"
    assert {name: len(turns) for name, turns in result.timings.items()} == {"ours": 2, "theirs": 2}


def test_the_ratio_is_the_median_of_the_turns_by_the_selected_clock() -> None:
    ours, theirs = taking((1, 2), (2, 2), (1, 2)), taking((3, 2), (4, 8), (10, 6))
    result = measure(case(lambda *_: {"ours": ours, "theirs": theirs}), FULL, repeats=3)
    wall, cpu = goal_of(result, "wall"), goal_of(result, "cpu")
    assert (wall["ratio"], wall["low"], wall["high"], wall["met"]) == (3, 2, 10, True)
    assert (cpu["ratio"], cpu["low"], cpu["high"]) == (3, 1, 4)
    assert cpu["ratio_wall"] == cpu["ratio_cpu"] == 3


def test_a_goal_may_bound_a_time_from_above_or_only_be_shown() -> None:
    goals = (Goal("theirs", most=25), Goal("theirs"))
    result = measure(case(lambda *_: {"ours": taking((3, 3)), "theirs": taking((0.1, 0.1))}, *goals), FULL, repeats=1)
    bounded, shown = goal_of(result, "wall"), goal_of(result, "wall", 1)
    assert bounded["ratio"] == pytest.approx(30) and not bounded["met"]
    assert shown["ratio"] == pytest.approx(1 / 30, abs=1e-4) and shown["met"]


def test_a_case_that_lacks_something_is_skipped_with_the_reason() -> None:
    def contestants(*_: Any) -> Mapping[str, Contestant]:
        raise HftuneError("there is no compiler", hint="install one")

    result = measure(case(contestants), FULL).as_dict("wall")
    assert result["skipped"] == "there is no compiler" and result["goals"] == []
    assert mentions(harness.table([{**result, "machine": MACHINE}]), "compiler")


def test_cpu_time_includes_children() -> None:
    command = [sys.executable, "-c", "sum(range(3_000_000))"]
    assert timed(1, lambda: subprocess.run(command, check=True)).cpu > 0.02


def test_the_cache_variable_is_restored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HFTUNE_CACHE", "before")
    with temporary_cache(tmp_path):
        assert os.environ["HFTUNE_CACHE"] == str(tmp_path)
    assert os.environ["HFTUNE_CACHE"] == "before"


def entry_of(name: str, ratio: float) -> dict[str, Any]:
    made = measure(case(lambda *_: {"ours": taking((1, 1)), "theirs": taking((ratio, ratio))}), FULL, repeats=1)
    return {**made.as_dict("wall"), "case": name, "what": f"work of {name}"}


def test_results_are_replaced_by_case_and_the_page_around_the_table_stays(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(f"# Speed\n\nbefore\n\n{harness.BEGIN}\nold\n{harness.END}\n\nafter\n")
    harness.check_page(tmp_path)
    harness.update_results(tmp_path, entry_of("b", 4), MACHINE)
    harness.update_results(tmp_path, entry_of("a", 1.5), {**MACHINE, "load": 7.0})
    harness.update_results(tmp_path, entry_of("b", 3), MACHINE)
    assert [row["case"] for row in read_json(tmp_path / "results.json")["results"]] == ["b", "a"]
    page = (tmp_path / "README.md").read_text()
    assert page.startswith("# Speed\n\nbefore\n") and page.endswith("\nafter\n") and "old" not in page
    assert "| work of a | theirs | at least 2.00× | 1.50× | 1.50× … 1.50× | wall | no |" in page
    assert "| work of b | theirs | at least 2.00× | 3.00× | 3.00× … 3.00× | wall | yes |" in page
    assert "- a: " in page and "load 7.0" in page and "- b: " in page


def test_a_page_without_a_place_for_the_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Speed\n")
    with pytest.raises(HftuneError, match=r"README\.md"):
        harness.check_page(tmp_path)
    harness.check_page(tmp_path / "new")


def test_the_saved_results_match_the_cases_and_the_table() -> None:
    assert len(CASES) >= 11 and all(one.goals and one.what and one.unit for one in CASES.values())
    rows = read_json(harness.HERE / "results.json")["results"]
    for row in rows:
        known = CASES[row["case"]]
        assert row["what"] == known.what and [goal["against"] for goal in row["goals"]] == [
            goal.against for goal in known.goals
        ]
    assert harness.table(rows) in (harness.HERE / "README.md").read_text(encoding="utf-8")


def test_texts_are_as_long_as_real_ones(tmp_path: Path) -> None:
    words = np.array([len(text.split()) for _, text in texts("sentences", 3000)])
    assert words.mean() == pytest.approx(22.8, abs=1.0) and words.std() == pytest.approx(11, abs=1.0)
    assert np.median([len(text.split()) for _, text in texts("reviews", 3000)]) == pytest.approx(100, abs=5)
    folder = write_dataset(tmp_path / "rows", "sentences", train=30, validation=5)
    assert len((folder / "train.csv").read_text().splitlines()) == 31
    assert texts("sentences", 5) == texts("sentences", 5)


def test_a_script_runs_one_case_and_reports_both_clocks(capsys: pytest.CaptureFixture[str]) -> None:
    harness.main(inference.CASES, ["answers", "--quick", "--repeats", "1", "--json"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    (row,) = found["results"]
    assert found["quick"] is True and row["case"] == "answers"
    assert row["contestants"].keys() == {"hftune", inference.PLAIN}
    assert row["goals"][0]["ratio_cpu"] > 0 and row["goals"][0]["ratio"] == row["goals"][0]["ratio_wall"]


@pytest.mark.parametrize(
    ("arguments", "named"), [(["answer"], "answers"), (["answers", "--quick", "--save"], "--save")]
)
def test_bad_requests(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        harness.main(inference.CASES, arguments)
    assert caught.value.code == 2 and named in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_every_case_runs_and_its_goals_name_its_contestants(name: str) -> None:
    result = measure(CASES[name], QUICK, repeats=1)
    assert not result.skipped
    assert len(result.as_dict("cpu")["goals"]) == len(CASES[name].goals)
    assert all(turn.work > 0 and turn.wall > 0 for turns in result.timings.values() for turn in turns)
