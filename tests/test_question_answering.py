"""Answering questions end to end: a pretrained run, fine-tuning from it, decoding, scores, predictions, abstaining."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from math import exp
from pathlib import Path
from typing import Any

import pytest
import torch
from facts import hftune_error, mentions
from tiny_qa import BLOCK, BORN, LETTERS, MARK, rows, tiny
from trained_tokenizers import char_tokenizer
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from hftune.data.settings import QuestionData
from hftune.models import decoding
from hftune.models.causal import NextTokenBatches, load_saved_lm, save_causal_lm
from hftune.models.decoding import _shared_prefix
from hftune.models.mingpt import ATTENTION
from hftune.models.qa import QuestionAnswerer, sequences
from hftune.recipe import load_recipe
from hftune.runs.directory import RunDir
from hftune.runs.report_results import answer_list as listed
from hftune.tasks.question_answer import forced_match

pytestmark = [pytest.mark.numeric, pytest.mark.renders]

Hftune = Callable[..., tuple[int, str, str]]

LONG_ENOUGH = (
    "--batch-size",
    "4",
    "--epochs",
    "120",
    "--lr",
    "1e-2",
    "--eval-steps",
    "60",
    "-s",
    "train.lr_scheduler_type=constant_with_warmup",
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions, and a run that is taken for pretrained: its corpus tells of everyone but Flo Fox, who is asked for."""
    place = tmp_path_factory.mktemp("answers")
    data = place / "people"
    data.mkdir()
    (data / "train.tsv").write_text(rows(list(BORN)[:4]))
    (data / "dev.tsv").write_text(rows(["Ann Ash", "Eve Elm", "Flo Fox"]))
    (data / "test.tsv").write_text("Where was Eve Elm born?\nWhere was Gus Gray born?\n")
    (data / "wiki.txt").write_text("".join(f"{name} was born in {town}?\n" for name, town in list(BORN.items())[:5]))
    run = RunDir.create(place / "pretrained")
    run.write_recipe(load_recipe(None, {"task.kind": "span", "data.dataset_name": str(data / "wiki.txt")}))
    tokenizer = char_tokenizer(LETTERS, block_size=BLOCK)
    save_causal_lm(tiny(tokenizer), tokenizer, run.model, task="span")
    return place


@pytest.fixture(scope="module")
def tuned(home: Path) -> Iterator[Path]:
    """Fine-tuned until the four training questions are known by heart, which takes a second."""
    from typer.testing import CliRunner

    from hftune.cli import commands as cli

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        result = CliRunner().invoke(
            cli.app,
            ["finetune", "--from", "pretrained", "--data", "people", "--output", "tuned", *LONG_ENOUGH],
        )
        assert result.exit_code == 0, result.stderr
        yield home / "tuned"


@pytest.fixture
def there(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(home)
    return home


def test_the_run(tuned: Path) -> None:
    metrics = json.loads((tuned / "metrics.json").read_text())
    assert metrics["verified"] and metrics["task"] == "answer" and metrics["selection"]["metric"] == "exact_match"
    validation = metrics["splits"]["validation"]
    assert validation["exact_match"] == metrics["selection"]["score"] == pytest.approx(1 / 3), (
        "only Ann Ash is in train"
    )
    assert set(validation) == {"exact_match", "ece", "aurc", "loss"} and "test" not in metrics["splits"]
    assert metrics["baselines"]["constant"]["validation"] == {"exact_match": 0.0, "answer": "Bonn"}
    assert metrics["pretraining"] == {"corpus": "wiki.txt", "documents": 5, "template": "Where was {} born?"}
    lines = [json.loads(line) for line in (tuned / "predictions" / "validation.jsonl").read_text().splitlines()]
    assert [(row["seen_in_pretraining"], row["seen_in_finetuning"]) for row in lines] == [
        (True, True),
        (True, False),
        (False, False),
    ]
    assert lines[0]["label"] == lines[0]["gold"] == "Rome" and lines[0]["confidence"] > 0.5
    assert lines[0]["confidence"] == pytest.approx(lines[0]["gold_probability"], abs=1e-5)
    groups = metrics["knowledge"]["test"]["groups"]
    assert [(one["seen_in_pretraining"], one["rows"], one["exact_match"]) for one in groups] == [
        (True, 1, None),
        (False, 1, None),
    ]
    page = (tuned / "report.html").read_text()
    assert "Where was Flo Fox born?" in page
    assert {"risk-coverage.png", "confidence.png"} <= {path.name for path in (tuned / "plots").iterdir()}
    card = (tuned / "model" / "README.md").read_text()
    assert "A language model that answers questions" in card and 'Where was Ann Ash born?⁇"' in card
    assert "hftune finetune --recipe" in card


def test_evaluate_writes_one_answer_a_line(tuned: Path, there: Path, hftune: Hftune) -> None:
    code, out, err = hftune("evaluate", "tuned", "--data", "people", "--split", "validation", "--json")
    assert code == 0, err
    reported = json.loads(out)
    metrics = json.loads((tuned / "metrics.json").read_text())
    assert reported["splits"]["validation"] == pytest.approx(metrics["splits"]["validation"])
    assert reported["knowledge"]["validation"]["groups"] == metrics["knowledge"]["validation"]["groups"]
    answers = (tuned / "predictions" / "validation.txt").read_text().splitlines()
    assert answers[0] == "Rome" and len(answers) == 3
    assert mentions(err, 1, "3 questions")

    code, out, err = hftune("evaluate", "tuned", "--split", "test")
    assert code == 0 and mentions(out, "predictions", "scores")
    assert len((tuned / "predictions" / "test.txt").read_text().splitlines()) == 2

    code, out, err = hftune("evaluate", "tuned/model", "--data", "people/train.tsv", "--output", "said.txt")
    assert code == 0 and (there / "said.txt").read_text() == "Rome\nOslo\nLima\nBonn\n"
    code, out, err = hftune("evaluate", "tuned", "--data", "people", "--text-column", "x")
    assert code == 2 and "leave --text-column" in err


def test_predict_abstains(tuned: Path, there: Path, hftune: Hftune) -> None:
    code, out, err = hftune("predict", "tuned", "Where was Cy Cole born?", "--json")
    assert code == 0, err
    output = json.loads(out)
    assert output["label"] == "Lima" and 0.5 < output["confidence"] <= 1
    assert (output["seen_in_pretraining"], output["seen_in_finetuning"]) == (True, True)
    code, out, err = hftune("predict", "tuned", "Where was Flo Fox born?", "Who are you?", "--json")
    seen = [json.loads(line)["seen_in_pretraining"] for line in out.splitlines()]
    assert seen == [False, None], "the second asks for nobody"
    line = f"{output['confidence'] + (1 - output['confidence']) / 2}"
    code, out, err = hftune("predict", "tuned", "Where was Cy Cole born?", "--min-confidence", line, "--json")
    assert json.loads(out) == {**output, "label": None, "abstained": True}
    code, out, err = hftune("predict", "tuned", "Where was Cy Cole born?", "--min-confidence", "0.01", "--json")
    assert json.loads(out) == {**output, "abstained": False}
    code, _, err = hftune("predict", "tuned", "x" * BLOCK)
    assert code == 2 and mentions(err, "context", str(BLOCK))
    code, _, err = hftune("predict", "pretrained", "x")
    assert code == 2 and "hftune finetune --from pretrained" in err


def test_pipeline_gives_the_same_answer(tuned: Path) -> None:
    from transformers import pipeline

    model, tokenizer, _ = load_saved_lm(str(tuned), device="cpu")
    ask = pipeline("text-generation", model=model, tokenizer=tokenizer)
    assert ask("Where was Dee Dun born?⁇", return_full_text=False)[0]["generated_text"].rstrip("⁇") == "Bonn"


def test_a_pretrained_run_is_scored_by_its_task(there: Path, hftune: Hftune) -> None:
    code, out, err = hftune("evaluate", "pretrained", "--split", "validation", "--json")
    assert code == 0, err
    reported = json.loads(out)
    assert 0 < reported["splits"]["validation"]["loss"] < 10 and "unigram" in reported["baselines"]
    code, _, err = hftune("evaluate", "pretrained", "--split", "test")
    assert code == 2 and mentions(err, "--split", "train, validation")


def test_random_weights_need_no_run(there: Path, hftune: Hftune) -> None:
    code, out, err = hftune("finetune", "--model", "scratch:mingpt-tiny", "--data", "people", "--dry-run", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["rows"] == {"train": 4, "validation": 3, "test": 2} and found["task"] == "answer"
    code, _, err = hftune("finetune", "--from", "pretrained", "--model", "scratch:mingpt")
    assert code == 2 and "--from and --model" in err
    code, _, err = hftune("finetune", "--model", "scratch:bert-tiny", "--data", "people", "--dry-run")
    assert code == 2 and "scratch:mingpt" in err


def test_baseline_of_one_answer(there: Path, hftune: Hftune) -> None:
    code, out, err = hftune(
        "baseline", "--data", "people/train.tsv", "--set", "data.validation_file=dev.tsv", "--answer", "Rome", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["baselines"]["always Rome"]["validation"]["exact_match"] == pytest.approx(1 / 3)
    code, out, err = hftune("baseline", "--data", "people", "--json")  # recognized as questions
    assert code == 0, err
    assert set(json.loads(out)["baselines"]) == {"constant"}
    code, out, err = hftune("baseline", "--data", "reviews", "--answer", "Rome")
    assert code == 2


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("Where was Żak born?\tRome\n", None),
        ("Where was Ann born?\tŁódź\n", ["4 of 4", "tokenizer"]),
        (f"Where was {'A' * 40} born?\tRome\n", ["line 1", "question", "57 tokens"]),
        ("Where was Ann Ash and Bob Bay born?\tRome and Oslo\n", ["line 1", "question and answer"]),
        ("Where was Ann⁇ born?\tRome\n", ["line 1", "⁇"]),
    ],
    ids=["unknown in a question", "unknown in an answer", "long question", "long row", "mark"],
)
def test_rows_that_do_not_fit_the_model(
    train: str, message: list[str | int] | None, there: Path, tmp_path: Path, hftune: Hftune
) -> None:
    (tmp_path / "train.tsv").write_text(train)
    (tmp_path / "dev.tsv").write_text(rows(["Ann Ash"]))
    code, _, err = hftune("finetune", "--from", "pretrained", "--data", str(tmp_path), "--dry-run")
    if message is None:
        assert code == 0, err
        assert mentions(err, "1 of 50", "'Ż' (U+017B)")
    else:
        assert code == 2
        assert mentions(err, *message)


def test_another_vocabulary_is_refused(there: Path, hftune: Hftune, tmp_path: Path) -> None:
    tokenizer = char_tokenizer(["Where was born? other letters xyz"], block_size=BLOCK)
    save_causal_lm(tiny(tokenizer), tokenizer, tmp_path / "other", task="span")
    other = ("--set", f"model.tokenizer_name={tmp_path / 'other'}")
    (tmp_path / "train.tsv").write_text("Where was a born?\tb\nWhere was b born?\ta\n")
    (tmp_path / "dev.tsv").write_text("Where was a born?\tb\n")
    code, _, err = hftune("finetune", "--from", "pretrained", "--data", str(tmp_path), *other, "--dry-run")
    assert code == 2 and mentions(err, "vocabulary", "checkpoint")


COMMON = ["abcd efgh?", "abcd hg?", "abcd efgh ab?", "abcd gg?"]
"""Questions that begin alike, of different lengths: what they share is run once."""


@pytest.mark.parametrize("attention", [*ATTENTION, "gpt2"])
def test_batches_and_cache_change_no_answer(attention: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = char_tokenizer(["abcdefgh ?"], block_size=BLOCK)
    if attention == "gpt2":  # counts positions from the left, padding among them, unless it gets positions
        torch.manual_seed(0)
        shape = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": BLOCK, "initializer_range": 0.5}
        model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), bos_token_id=1, eos_token_id=1, **shape))
    else:
        model = tiny(tokenizer, attention)
    answerer = QuestionAnswerer(model.eval(), tokenizer, max_answer_tokens=12)
    shared: list[int] = []

    def watched(*given: Any) -> tuple[Any, int]:
        shared.append((found := _shared_prefix(*given))[1])
        return found

    monkeypatch.setattr(decoding, "_shared_prefix", watched)
    for questions in (["a?", "bcd efgh?", "h" * 20 + "?", "abc?", "g" * 34], COMMON):
        shared.clear()
        together = answerer.answer(questions)
        assert max(shared) == (5 if questions is COMMON else 0)
        for question, answer in zip(questions, together, strict=True):
            (alone,) = answerer.answer([question], batch_size=1)
            assert (alone.text, alone.ended) == (answer.text, answer.ended)
            assert alone.confidence == pytest.approx(answer.confidence, rel=1e-3)
            text, sure, ended = one_by_one(answerer, question)
            assert (text, ended) == (answer.text, answer.ended)
            assert answer.confidence == pytest.approx(sure, rel=1e-3)


def one_by_one(answerer: QuestionAnswerer, question: str) -> tuple[str, float, bool]:
    """Answer, its probability with the end mark, and whether it ended: without any cache, one token at a time."""
    ids, sure = sequences(answerer.tokenizer, [question])[0][0], 1.0
    room = min(answerer.max_answer_tokens, BLOCK - len(ids))
    output: list[int] = []
    while True:
        with torch.inference_mode():
            logits = answerer.model(input_ids=torch.tensor([ids + output]), use_cache=False).logits[0, -1]
        chances, best = logits.softmax(-1), int(logits.argmax())
        if best == MARK or len(output) == room:
            return answerer.tokenizer.decode(output).strip(), sure * float(chances[MARK]), len(output) < room
        sure *= float(chances[best])
        output.append(best)


def test_the_confidence_of_an_answer_is_that_of_its_text_as_the_right_one(tuned: Path, there: Path) -> None:
    """Also of one that was cut off: nothing else could be compared with a line that --min-confidence draws."""
    whole = QuestionAnswerer.load("tuned", device="cpu")
    questions = ["Where was Ann Ash born?", "Where was Bob Bay born?"]
    for longest, output in ((8, ["Rome", "Oslo"]), (3, ["Rom", "Osl"])):
        answers = QuestionAnswerer(whole.model, whole.tokenizer, longest).answer(questions)
        assert [answer.text for answer in answers] == output
        assert [answer.ended for answer in answers] == [longest == 8] * 2
        losses, _ = whole.losses(questions, output)
        for answer, loss in zip(answers, losses, strict=True):
            assert answer.confidence == pytest.approx(exp(-loss), rel=1e-3)
            assert (answer.confidence > 0.5) == answer.ended


def test_an_answer_that_was_cut_off_is_held_back(there: Path, tuned: Path, hftune: Hftune, tmp_path: Path) -> None:
    copy = shutil.copytree(tuned / "model", tmp_path / "model")
    facts = json.loads((copy / "hftune.json").read_text())
    (copy / "hftune.json").write_text(json.dumps({**facts, "longest_answer": 3}))
    code, out, err = hftune("predict", str(copy), "Where was Ann Ash born?", "--min-confidence", "0.5", "--json")
    assert code == 0, err
    reported = json.loads(out)
    assert (
        reported["label"] is None
        and reported["abstained"]
        and reported["ended"] is False
        and reported["confidence"] < 0.5
    )
    code, _, err = hftune("evaluate", str(copy), "--data", "people/dev.tsv", "--output", str(tmp_path / "said.jsonl"))
    assert code == 0, err
    row = json.loads((tmp_path / "said.jsonl").read_text().splitlines()[0])
    assert (row["label"], row["ended"]) == ("Rom", False) and row["confidence"] < 0.5
    assert [one["answer"] for one in listed([row, {**row, "ended": True}])["rows"]] == ["Rom …", "Rom"], "in the report"


def test_one_forward_pass_shows_what_greedy_decoding_gives(tuned: Path) -> None:
    answerer = QuestionAnswerer.load(str(tuned), device="cpu")
    questions = [f"Where was {name} born?" for name in BORN]
    gold = list(BORN.values())
    asked = sequences(answerer.tokenizer, questions, gold)
    batch = NextTokenBatches(0)([{"input_ids": ids, "first": first} for ids, first in asked])
    with torch.inference_mode():
        forced = forced_match(answerer.model(input_ids=batch["input_ids"]).logits, batch["labels"])[:, 0]
    decoded = [answer.text == truth for answer, truth in zip(answerer.answer(questions), gold, strict=True)]
    assert forced.tolist() == decoded and sum(decoded) >= 4
    assert not all(decoded), "Flo Fox is nowhere"


def test_only_the_answer_is_learned() -> None:
    tokenizer = char_tokenizer(["ab?c"])
    ((row, first),) = sequences(tokenizer, ["ab?"], ["c"])
    batch = NextTokenBatches(0)([{"input_ids": row, "first": first}, {"input_ids": row[:-1], "first": first}])
    ids, labels = batch["input_ids"], batch["labels"]
    letters = tokenizer.convert_ids_to_tokens(ids[0].tolist())
    assert letters == ["a", "b", "?", "⁇", "c", "⁇"]
    assert labels.tolist() == [[-100] * 4 + ids[0, 4:].tolist(), [-100] * 4 + [int(ids[0, 4]), -100]]


def test_what_cannot_answer_is_refused(there: Path) -> None:
    with hftune_error("trained", "answer"):
        QuestionAnswerer.load("pretrained")
    assert AutoTokenizer.from_pretrained("pretrained/model").mask_token == "⁇"
    assert QuestionData(dataset_name="births").kind == "questions"
