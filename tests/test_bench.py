"""Benchmarks: how turns are taken and ratios made, what is kept, what the command says. No speed is asserted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hftune.bench import CASES, choose, kept
from hftune.bench.case import FULL, QUICK, Case, Goal, Scale, Side, Turn, own_cache, timed
from hftune.bench.measure import measure
from hftune.bench.rows import texts, write_rows
from hftune.errors import HftuneError
from hftune.files import read_json

MACHINE = {"cpu": "a processor", "cores": 2, "threads": 2, "load": 0.1, "versions": {"torch": "1"}}


def case(sides: Callable[[Path, Scale], Mapping[str, Side]], *goals: Goal, **more: Any) -> Case:
    return Case("made-up", "made-up work", "rows", goals or (Goal("theirs", least=2),), sides, **more)


def taking(*seconds: tuple[float, float]) -> Side:
    """A side whose turns take these wall and processor seconds, one after the other."""
    given = iter(seconds)
    return lambda: Turn(100, *next(given))


def test_sides_take_turns_there_and_back_and_warm_ups_do_not_count() -> None:
    calls: list[str] = []

    def side(name: str) -> Side:
        def turn() -> Turn:
            calls.append(name)
            return Turn(1, 1, 1)

        return turn

    result = measure(case(lambda *_: {"ours": side("o"), "theirs": side("t")}, warm_ups=1), FULL, repeats=2)
    assert "".join(calls) == "to" + "ot" + "to"
    assert {name: len(turns) for name, turns in result.turns.items()} == {"ours": 2, "theirs": 2}


def test_the_ratio_is_the_median_of_the_turns_by_the_clock_that_is_named() -> None:
    ours, theirs = taking((1, 2), (2, 2), (1, 2)), taking((3, 2), (4, 8), (10, 6))
    result = measure(case(lambda *_: {"ours": ours, "theirs": theirs}), FULL, repeats=3)
    (wall,), (cpu,) = result.ratios("wall"), result.ratios("cpu")
    assert (wall.median, wall.low, wall.high, wall.met) == (3, 2, 10, True)
    assert (cpu.median, cpu.low, cpu.high) == (3, 1, 4)
    told = result.as_dict("cpu")["goals"][0]
    assert told["ratio"] == 3 and told["ratio_wall"] == 3 and told["low"] == 1


def test_a_goal_may_bound_a_time_from_above_or_only_be_shown() -> None:
    goals = (Goal("theirs", most=25), Goal("theirs"))
    result = measure(case(lambda *_: {"ours": taking((3, 3)), "theirs": taking((0.1, 0.1))}, *goals), FULL, repeats=1)
    bounded, shown = result.ratios("wall")
    assert bounded.median == pytest.approx(30) and not bounded.met
    assert shown.median == pytest.approx(1 / 30) and shown.met


def test_what_a_machine_lacks_is_told_and_the_others_go_on() -> None:
    def sides(*_: Any) -> Mapping[str, Side]:
        raise HftuneError("there is no compiler", hint="install one")

    result = measure(case(sides), FULL)
    assert result.skipped == "there is no compiler" and result.ratios("wall") == []
    assert "not run: there is no compiler" in kept.markdown([{**result.as_dict("wall"), "machine": MACHINE}])


def test_processor_time_counts_children() -> None:
    import subprocess
    import sys

    command = [sys.executable, "-c", "sum(range(3_000_000))"]
    assert timed(1, lambda: subprocess.run(command, check=True)).cpu > 0.02


def test_a_cache_of_its_own_is_put_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    monkeypatch.setenv("HFTUNE_CACHE", "before")
    with own_cache(tmp_path):
        assert os.environ["HFTUNE_CACHE"] == str(tmp_path)
    assert os.environ["HFTUNE_CACHE"] == "before"


def result_of(name: str, ratio: float) -> dict[str, Any]:
    made = measure(
        case(lambda *_: {"ours": taking((1, 1)), "theirs": taking((ratio, ratio))}), FULL, repeats=1
    ).as_dict("wall")
    return {**made, "case": name, "what": f"work of {name}"}


def test_results_are_kept_by_case_and_the_page_around_the_table_stays(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(f"# Speed\n\nbefore\n\n{kept.BEGIN}\nold\n{kept.END}\n\nafter\n")
    kept.check(tmp_path)
    kept.keep(tmp_path, [result_of("b", 4)], MACHINE, ["a", "b"])
    kept.keep(tmp_path, [result_of("a", 1.5)], {**MACHINE, "load": 7.0}, ["a", "b"])
    kept.keep(tmp_path, [result_of("b", 3)], MACHINE, ["a", "b"])
    assert [row["case"] for row in read_json(tmp_path / "results.json")["results"]] == ["a", "b"]
    page = (tmp_path / "README.md").read_text()
    assert page.startswith("# Speed\n\nbefore\n") and page.endswith("\nafter\n") and "old" not in page
    assert "| work of a | theirs | at least 2.00× | 1.50× | 1.50× … 1.50× | wall time | no |" in page
    assert "| work of b | theirs | at least 2.00× | 3.00× | 3.00× … 3.00× | wall time | yes |" in page
    assert "- a: " in page and "load 7.0" in page and "- b: " in page


def test_a_page_without_a_place_for_the_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Speed\n")
    with pytest.raises(HftuneError, match="no place for the table"):
        kept.check(tmp_path)
    kept.check(tmp_path / "new")


def test_the_table_of_cases() -> None:
    assert len(CASES) >= 11 and all(name == one.name for name, one in CASES.items())
    assert all(one.goals and one.what and one.unit for one in CASES.values())
    assert choose([]) == list(CASES.values())
    assert [one.name for one in choose(["answers", "head"])] == ["head", "answers"]
    with pytest.raises(HftuneError, match="no benchmark 'heads'") as caught:
        choose(["heads"])
    assert "head" in caught.value.hint


def test_what_is_kept_belongs_to_the_table() -> None:
    path = Path(__file__).parent.parent / "benchmarks" / kept.RESULTS
    rows = read_json(path)["results"]
    assert {row["case"] for row in rows} <= set(CASES)
    assert kept.markdown(rows) in (path.parent / kept.PAGE).read_text(encoding="utf-8")


def test_rows_are_as_long_as_real_ones(tmp_path: Path) -> None:
    words = np.array([len(text.split()) for _, text in texts("sentences", 3000)])
    assert words.mean() == pytest.approx(22.8, abs=1.0) and words.std() == pytest.approx(11, abs=1.0)
    assert np.median([len(text.split()) for _, text in texts("reviews", 3000)]) == pytest.approx(100, abs=5)
    folder = write_rows(tmp_path / "rows", "sentences", train=30, validation=5)
    assert len((folder / "train.csv").read_text().splitlines()) == 31
    assert texts("sentences", 5) == texts("sentences", 5)


def test_ls_shows_every_case_with_its_goal(hftune: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = hftune("bench", "ls")
    assert code == 0 and all(name in out for name in CASES) and "at least 2.50×" in out and "under 25.0×" in out
    code, out, _ = hftune("bench", "ls", "--json")
    assert code == 0 and [row["case"] for row in json.loads(out)] == list(CASES)


def test_a_case_runs_and_tells_both_clocks(hftune: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = hftune("bench", "run", "answers", "--quick", "--repeats", "1", "--json")
    assert code == 0
    told = json.loads(out)
    (row,) = told["results"]
    assert (
        told["quick"] is True
        and row["case"] == "answers"
        and row["sides"].keys() == {"hftune", "one by one, without a cache"}
    )
    assert row["goals"][0]["ratio_cpu"] > 0 and row["goals"][0]["ratio"] == row["goals"][0]["ratio_wall"]


def test_bad_requests(hftune: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    code, _, err = hftune("bench", "run", "answer")
    assert code == 2 and "answers" in err
    code, _, err = hftune("bench", "run", "startup", "--quick", "--keep", str(tmp_path))
    assert code == 2 and "says nothing about speed" in err


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_every_case_runs_and_its_goals_name_its_sides(name: str) -> None:
    result = measure(CASES[name], QUICK, repeats=1)
    assert not result.skipped
    assert len(result.ratios("cpu")) == len(CASES[name].goals)
    assert all(turn.work > 0 and turn.wall > 0 for turns in result.turns.values() for turn in turns)
