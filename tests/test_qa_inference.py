"""A model that answers, in use: what files ask it, what is refused or warned of, and what is known of names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from facts import mentions
from tiny_qa import plant, rows

from hftune.models.qa import QuestionAnswerer

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
    reported = [json.loads(line)["text"] for line in out.splitlines()]
    assert reported == ["Where was Ann Ash born?", "Where was Bob Bay born?"]


def test_a_line_of_a_tsv_that_is_no_question_is_named(asked: Path, here: Path, hftune: Hftune) -> None:
    (here / "ask.tsv").write_text("Where was Ann Ash born?\nWhere was Bob Bay born?\tOslo\n")
    code, _, err = hftune("predict", str(asked), "--file", "ask.tsv")
    assert code == 2 and mentions(err, "'ask.tsv'", "line 2", "tab")


UNKNOWN = "4 of 20 characters are unknown to the tokenizer: 'ó' (U+00F3) × 1, 'ć' (U+0107) × 1"


def test_characters_that_are_the_same_token_are_reported(asked: Path, here: Path, hftune: Hftune) -> None:
    code, _, err = hftune("predict", str(asked), "Where was Żółć born?")
    assert code == 0 and f"the questions: {UNKNOWN}" in err, err
    (here / "other.tsv").write_text("Where was Żółć born?\n")
    code, _, err = hftune("evaluate", str(asked), "--data", "other.tsv")
    assert code == 0 and f"WARNING: other.tsv: {UNKNOWN}" in err, err
    (here / "known.tsv").write_text("Where was Ann born?\tŁódź\n")
    code, _, err = hftune("evaluate", str(asked), "--data", "known.tsv")
    assert code == 0 and "known.tsv: 4 of 23 characters" in err, "an answer that could never be given"
    code, _, err = hftune("predict", str(asked), "Where was Ann Ash born?")
    assert code == 0 and "unknown" not in err


def test_a_mark_is_not_set_twice(asked: Path, here: Path, hftune: Hftune) -> None:
    code, _, err = hftune("predict", str(asked), "Where was Ann Ash born?⁇")
    assert code == 2 and "⁇" in err and "leave ⁇ out" in err
    (here / "other.tsv").write_text("Where was Ann Ash born?\nWhere was Bob⁇ born?\n")
    code, _, err = hftune("evaluate", str(asked), "--data", "other.tsv")
    assert code == 2 and mentions(err, "'other.tsv'", "line 2", "⁇")


def test_a_row_that_does_not_fit_is_named_before_anything_is_answered(
    asked: Path, here: Path, hftune: Hftune, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QuestionAnswerer, "answer", lambda *given, **settings: pytest.fail("it was asked"))
    (here / "long.tsv").write_text("Where was Ann born?\tRome\nWhere was Bob Bay born?\tBonn or Rome or Oslo\n")
    code, _, err = hftune("evaluate", str(asked), "--data", "long.tsv")
    assert code == 2 and mentions(err, "'long.tsv'", "line 2", "45 tokens")
    (here / "long.tsv").write_text(f"Where was {'Ann ' * 10} born?\n")
    code, _, err = hftune("evaluate", str(asked), "--data", "long.tsv")
    assert code == 2 and mentions(err, "'long.tsv'", "line 1", "question")


def test_other_questions_are_scored_where_the_own_ones_are_gone(asked: Path, here: Path, hftune: Hftune) -> None:
    (here / "other.tsv").write_text(rows(["Ann Ash", "Cy Cole"]))
    code, _, err = hftune("evaluate", str(asked), "--data", "other.tsv")
    assert code == 0 and mentions(err, 1, "2 questions")
    (here / "people").rename(here / "elsewhere")
    code, out, err = hftune("evaluate", str(asked), "--data", "other.tsv", "--json")
    assert code == 0 and mentions(err, "trained", "questions"), err
    assert mentions(err, "training questions", "asked")
    (group,) = json.loads(out)["knowledge"]["all"]["groups"]
    assert (group["seen_in_pretraining"], group["seen_in_finetuning"]) == (False, None)
    code, _, err = hftune("evaluate", str(asked))
    assert code == 2 and mentions(err, "own data") and "--data" in err


def test_a_model_that_is_no_run_takes_the_form_of_what_it_is_asked(asked: Path, here: Path, hftune: Hftune) -> None:
    (asked / "model").rename(here / "alone")
    (here / "other.tsv").write_text(rows(["Ann Ash", "Cy Cole"]))
    code, _, err = hftune("evaluate", "alone", "--data", "other.tsv")
    assert code == 0 and "template" not in err, err
    assert mentions(err, "pretraining", "alone")
    assert mentions(err, "fine-tuning", "alone")
    (here / "other.tsv").write_text("Where was Ann born?\nWas Bob born here?\n")
    code, _, err = hftune("evaluate", "alone", "--data", "other.tsv")
    assert code == 0 and "hftune finetune --set data.template=" in " ".join(err.split())
