"""A model that answers, in use: what files ask it, what is refused or warned of, and what is known of names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_answerer import plant, rows

Hftune = Callable[..., tuple[int, str, str]]


@pytest.fixture
def asked(here: Path) -> Path:
    """A run that answers, in the folder of its questions."""
    data = here / "people"
    data.mkdir()
    (data / "train.tsv").write_text(rows(["Ann Ash", "Bob Bay"]))
    (data / "dev.tsv").write_text(rows(["Cy Cole"]))
    return plant(here / "asked", data).path


@pytest.mark.parametrize(
    "lines",
    [
        "Where was Ann Ash born?\nWhere was Bob Bay born?\n",
        "Where was Ann Ash born?\tRome\nWhere was Bob Bay born?\tOslo\n",
        "question\nWhere was Ann Ash born?\nWhere was Bob Bay born?\n",
        "question\tanswer\nWhere was Ann Ash born?\tRome\nWhere was Bob Bay born?\tOslo\n",
    ],
    ids=["questions", "with answers", "questions under a header", "both under a header"],
)
def test_every_question_of_a_tsv_is_asked(lines: str, asked: Path, here: Path, hftune: Hftune) -> None:
    (here / "birth_test_inputs.tsv").write_text(lines)
    code, out, err = hftune("predict", str(asked), "--file", "birth_test_inputs.tsv")
    assert code == 0, err
    told = [json.loads(line)["text"] for line in out.splitlines()]
    assert told == ["Where was Ann Ash born?", "Where was Bob Bay born?"]


def test_a_line_of_a_tsv_that_is_no_question_is_named(asked: Path, here: Path, hftune: Hftune) -> None:
    (here / "ask.tsv").write_text("Where was Ann Ash born?\nWhere was Bob Bay born?\tOslo\n")
    code, _, err = hftune("predict", str(asked), "--file", "ask.tsv")
    assert code == 2 and "'ask.tsv', line 2: has a tab, but" in err
