"""Questions and answers from tsv files; what is counted of answers: risk, calibration, and names that were seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from facts import hftune_error, mentions
from typer.testing import CliRunner

from hftune.cli import commands as cli
from hftune.data.questions import load_question_split, load_questions
from hftune.data.settings import QuestionData
from hftune.errors import HftuneError
from hftune.evaluation.knowledge import (
    answer_scores,
    answers_collapsed,
    area_under_risk,
    exact_match,
    knowledge,
    name_in,
    names_in_text,
    question_template,
    risk_coverage,
)
from hftune.recipe import Recipe, load_recipe

pytestmark = pytest.mark.numeric


def folder(path: Path, **files: str) -> QuestionData:
    path.mkdir(exist_ok=True)
    for name, text in files.items():
        (path / f"{name}.tsv").write_text(text, encoding="utf-8")
    return QuestionData(dataset_name=str(path))


def test_embedded_births() -> None:
    data = load_questions(QuestionData())
    assert {name: len(rows) for name, rows in data.named.items()} == {"train": 160, "validation": 100, "test": 80}
    assert data.test is not None and data.test.answers is None
    assert data.notes == ("test has no answers: it gets predictions and no scores",)
    assert data.corpus is not None and data.corpus.name == "wiki.txt"
    template = question_template(data.train.questions)
    assert template == "Where was {} born?"
    names = {split: {name_in(question, template) for question in rows.questions} for split, rows in data.named.items()}
    assert not names["train"] & names["validation"] and None not in names["test"]
    read = names_in_text(names["test"], data.corpus.read_text(encoding="utf-8").splitlines())
    assert len(read) == 60, "twenty of the test people are nowhere"


def test_files_of_the_course(tmp_path: Path) -> None:
    section = folder(
        tmp_path / "births",
        birth_places_train="Where was A B born?\tRome\r\nWhere was C D born?\tOslo\r\n",
        birth_dev="question\tanswer\nWhere was A B born?\tRome\n",
        birth_test_inputs="Where was E born?\nWhere was F born?\n",
    )
    data = load_questions(section)
    assert data.train.required_answers == ("Rome", "Oslo") and data.validation.questions == ("Where was A B born?",)
    assert data.validation.lines == (2,), "the header is no row"
    assert mentions(data.notes, "1 of the 1", "train")
    assert load_question_split(section, None)[0] == "validation", "test has no answers to score"
    assert load_question_split(section, "test")[1].answers is None
    with hftune_error("all"):
        load_question_split(section, "all")


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    text = "Where was A\u2028B born?\tRome\nWhere was C\x85 born?\tOslo\nno tab\n"
    with hftune_error("line 3", "<TAB>"):
        load_questions(folder(tmp_path, train=text, validation="a?\tb\n"))


@pytest.mark.parametrize("template", ["Where was X born?", "{} and {}"])
def test_a_template_shows_one_name(template: str) -> None:
    with hftune_error("template", "{}"):
        load_recipe("finetune/births", {"data.template": template})


@pytest.mark.parametrize("model", [{"model.model_name_or_path": "runs/a"}, {"model.tokenizer_name": "runs/a"}])
def test_a_corpus_is_for_vocabularies_that_are_made(model: dict[str, str]) -> None:
    assert load_recipe("finetune/births", {"data.corpus": "wiki.txt"}).data.corpus == "wiki.txt"
    assert load_recipe("finetune/births", model)
    with hftune_error("data.corpus", "runs/a"):
        load_recipe("finetune/births", {"data.corpus": "wiki.txt", **model})


@pytest.mark.parametrize(
    ("model", "like"),
    [
        ([], "finetune/births-scratch"),
        (["--model", "scratch:mingpt"], "finetune/scratch"),
        (["--model", "scratch:mingpt-tiny"], "finetune/scratch"),
        (["--model", "runs/a"], "finetune/births"),
        (["--from", "runs/a"], "finetune/births"),
    ],
)
def test_random_weights_are_trained_as_such(monkeypatch: pytest.MonkeyPatch, model: list[str], like: str) -> None:
    asked: list[Recipe] = []

    def dry_run(recipe: Recipe, *_: object, **__: object) -> None:
        asked.append(recipe)
        raise HftuneError("enough", hint="enough")

    monkeypatch.setattr("hftune.pipeline.dry_run.dry_run", dry_run)
    CliRunner().invoke(cli.app, ["finetune", *model, "--dry-run"], prog_name="hftune")
    assert asked == [load_recipe(like, {"model.model_name_or_path": model[-1] if model else None})]
    assert asked[0].train.num_train_epochs == (40 if asked[0].model.from_scratch else 10)


def test_a_single_file_gives_its_own_validation(tmp_path: Path) -> None:
    section = folder(tmp_path, rows="".join(f"Where was {name} born?\tRome\n" for name in "ABCDEFGHIJ"))
    section = section.model_copy(update={"dataset_name": str(tmp_path / "rows.tsv"), "validation_size": 0.3})
    data = load_questions(section)
    assert (len(data.train), len(data.validation)) == (7, 3)
    assert not set(data.train.questions) & set(data.validation.questions)
    assert load_questions(section).validation == data.validation
    assert load_questions(section.model_copy(update={"split_seed": 1})).validation != data.validation
    assert len(load_question_split(section, None)[1]) == 10


@pytest.mark.parametrize(
    ("line", "looks"),
    [
        ("Where was B born? Rome", "an answer directly after its question"),
        ("Where was B born?    Rome", "spaces in place of the tab"),
        ("Where was B born?,Rome", "a comma in place of the tab"),
        (r"Where was B born?\tRome", r"the two characters \t"),
        ("Where was B born?", "a question without its answer"),
        ("B", "plain text"),
    ],
)
def test_a_line_without_a_tab(tmp_path: Path, line: str, looks: str) -> None:
    section = folder(tmp_path, train=f"Where was A born?\tRome\n{line}\n", validation="Where was A born?\tRome\n")
    with hftune_error("'train.tsv'", "line 2", "<TAB>") as error:
        load_questions(section)
    assert looks in error.value.hint
    assert line.replace("\\", "\\\\") in error.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a?\tb\tc\n", ["line 1", "one tab", 2]),
        ("a?\tb\n\nc?\td\n", ["line 2 is blank"]),
        ("a?\t \n", ["line 1", "answer is empty"]),
        ("\tb\n", ["line 1", "question is empty"]),
        ("question\tanswer\n", ["has no questions"]),
        ("", ["is empty"]),
    ],
)
def test_other_bad_lines(tmp_path: Path, text: str, message: list[str | int]) -> None:
    with hftune_error(*message):
        load_questions(folder(tmp_path, train=text, validation="a?\tb\n"))


def test_only_test_may_lack_answers(tmp_path: Path) -> None:
    for split in ("train", "validation"):
        files = {"train": "a?\tb\n", "validation": "a?\tb\n", split: "a?\nb?\tc\n"}
        with hftune_error(f"{split}.tsv", "line 1", "<TAB>"):
            load_questions(folder(tmp_path, **files))


def test_answers_in_some_lines_of_test_only(tmp_path: Path) -> None:
    with hftune_error("line 2", "tab"):
        load_questions(folder(tmp_path, train="a?\tb\n", validation="a?\tb\n", test="a?\nb?\tc\n"))


def test_templates() -> None:
    assert question_template(["Who is Ada?", "Who is Bob Ho?"]) == "Who is {}?"
    assert question_template(["Ada was born where?", "Bob was born where?"]) == "{} was born where?"
    assert question_template(["Where is Ada?", "When did Bob?"]) is None
    assert question_template(["Where is Ada?"]) is None
    assert name_in("Where was Ada B. Low born?", "Where was {} born?") == "Ada B. Low"
    assert name_in("When was Ada born?", "Where was {} born?") is None
    assert names_in_text({"Ada Low", "Bob"}, ["Ada Lowell met Bobby.", "(Bob)"]) == {"Bob"}
    assert names_in_text({"Ada", "Low"}, ["Wilhelmiada and McLow", "LowLow"]) == set(), "not the end of a word"
    assert names_in_text({"Low"}, ["McLow met Low"]) == {"Low"}


def test_risk_and_coverage() -> None:
    sure, right = np.array([0.9, 0.8, 0.7, 0.1]), np.array([1.0, 1.0, 0.0, 0.0])
    curve = risk_coverage(sure, right)
    assert len(curve) == 100
    assert curve[49] == {"coverage": 0.5, "accuracy": 1.0, "confidence": 0.8}
    assert curve[-1] == {"coverage": 1.0, "accuracy": 0.5, "confidence": 0.1}
    assert curve[50] == {"coverage": 0.51, "accuracy": pytest.approx(2 / 3), "confidence": 0.7}, "51 % of 4 take three"
    assert area_under_risk(sure, right) == pytest.approx((0 + 0 + 1 / 3 + 1 / 2) / 4)
    # Equally probable answers have no order, whatever order they come in.
    alike = np.full(4, 0.5)
    assert area_under_risk(alike, right) == area_under_risk(alike, right[::-1]) == pytest.approx(0.5)
    assert risk_coverage(alike, right)[0]["accuracy"] == 0.5


def test_scores_and_groups() -> None:
    rows = [
        {"label": output, "gold": gold, "confidence": sure, "seen_in_pretraining": read, "seen_in_finetuning": False}
        for output, gold, sure, read in [
            ("Rome", "Rome ", 0.9, True),
            ("Oslo", "Rome", 0.3, True),
            ("Oslo", "Paris", 0.5, False),
            ("Paris", "Paris", 0.7, None),
        ]
    ]
    scores = answer_scores(rows)
    assert scores["exact_match"] == 0.5
    assert exact_match(["rome", "Rome.", " Rome"], ["Rome", "Rome", "Rome"]).tolist() == [0, 0, 1], "to the letter"
    assert scores["ece"] == pytest.approx((0.1 + 0.3 + 0.5 + 0.3) / 4)
    groups = knowledge(rows)["groups"]
    assert [(one["seen_in_pretraining"], one["rows"], one["exact_match"]) for one in groups] == [
        (True, 2, 0.5),
        (False, 1, 0.0),
        (None, 1, 1.0),
    ]
    assert groups[0]["confidence"] == pytest.approx(0.6)
    unknown = knowledge([{**row, "gold": None} for row in rows])
    assert set(unknown) == {"groups"} and unknown["groups"][0]["exact_match"] is None
    assert answers_collapsed(rows) is None
    reason = answers_collapsed([{**row, "label": "Oslo"} for row in rows])
    assert reason is not None and "'Oslo'" in reason
