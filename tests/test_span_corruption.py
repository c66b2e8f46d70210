"""Span corruption: a pure function that loses no character, and its scores."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from facts import hftune_error, mentions
from trained_tokenizers import char_tokenizer
from training_case import same
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from hftune.cli import commands as cli
from hftune.data.corpus import load_texts
from hftune.errors import HftuneError
from hftune.evaluation.language import count_tokens, span_baselines, span_scores
from hftune.models.causal import NextTokenBatches
from hftune.models.settings import MASK, ModelSection
from hftune.pipeline.inference import evaluate
from hftune.pipeline.train import assemble, train
from hftune.progress import ProgressReporter
from hftune.recipe import Recipe, load_recipe
from hftune.runs.directory import RunDir
from hftune.tasks import task_class
from hftune.tasks.corruption import UNSEEN, CorruptedRows, Corruption, FixedRows, corrupted, plan, tokenize_documents
from hftune.tasks.settings import SpanTask
from hftune.tasks.task import EvaluationRequest

pytestmark = pytest.mark.numeric

MARK = 1
SIZES = np.random.default_rng(0).integers(4, 200, 3000)
ONE = Corruption(shortest=4, longest=112, share=0.25, spans=1, anywhere=False)


def document(row: int) -> np.ndarray:
    """Tokens that are all different, so that each can be found again."""
    return np.arange(10, 10 + SIZES[row])


def restored(sequence: np.ndarray, spans: int) -> np.ndarray:
    """The piece of the document that a corrupted sequence was made of."""
    marks = np.flatnonzero(sequence == MARK)
    assert len(marks) == 2 * spans + 1 and marks[-1] == len(sequence) - 1
    pieces = np.split(sequence, marks)
    kept, reported = pieces[: spans + 1], pieces[spans + 1 : -1]
    parts = [kept[0]]
    for hole, span in zip(kept[1:], reported, strict=True):
        parts += [span[1:], hole[1:]]
    return np.concatenate(parts)


@pytest.mark.parametrize("spans", [1, 3])
@pytest.mark.parametrize("anywhere", [False, True], ids=["start", "anywhere"])
def test_no_character_is_lost_and_order_is_kept(spans: int, anywhere: bool) -> None:
    drawn = plan(SIZES, Corruption(4, 112, 0.25, spans, anywhere), seed=1, epoch=0)
    for row in range(0, 3000, 7):
        sequence = corrupted(document(row), drawn, row, MARK)
        assert len(sequence) == drawn.totals[row]
        start, length = drawn.starts[row], drawn.lengths[row]
        assert np.array_equal(restored(sequence, spans), document(row)[start : start + length])
        reported = drawn.prefix_lengths[row]
        assert sequence[reported - 1] == MARK and np.count_nonzero(sequence[:reported] == MARK) == spans + 1
    assert (drawn.starts.max() > 0) == anywhere
    assert (drawn.starts + drawn.lengths <= SIZES).all()


def test_lengths_and_shares_are_those_that_were_requested() -> None:
    long = np.full(20_000, 500)
    drawn = plan(long, Corruption(48, 112, 0.25, 1, False), seed=3, epoch=2)
    assert (drawn.lengths.min(), drawn.lengths.max()) == (48, 112)
    assert abs(drawn.lengths.mean() - 80) < 0.5
    shares = drawn.widths[:, 0] / drawn.lengths
    assert abs(shares.mean() - 0.25) < 0.005
    assert shares.min() > 0.11 and shares.max() < 0.39
    assert drawn.spans.min() == 0 and (drawn.spans + drawn.widths == drawn.lengths[:, None]).any(), "at either end"
    three = plan(long, Corruption(48, 112, 0.25, 3, False), seed=3, epoch=2)
    assert abs((three.widths.sum(1) / three.lengths).mean() - 0.25) < 0.01, "several spans share it"
    most = plan(np.full(500, 6), Corruption(4, 112, 0.99, 2, False), seed=3, epoch=2)
    assert (most.widths.sum(1) < most.lengths).all() and most.widths.min() >= 0, "something always stays"
    whole = plan(np.full(50, 20), Corruption(48, 112, 0.25, 1, False), seed=3, epoch=2)
    assert (whole.lengths == 20).all(), "a document that is shorter is taken whole"


def test_pure_in_seed_epoch_and_document() -> None:
    first = plan(SIZES, ONE, seed=1, epoch=5)
    again, shorter = plan(SIZES, ONE, seed=1, epoch=5), plan(SIZES[:10], ONE, seed=1, epoch=5)
    assert np.array_equal(first.spans, again.spans) and np.array_equal(first.lengths, again.lengths)
    assert np.array_equal(first.lengths[:10], shorter.lengths), "later documents have no say"
    for other in (plan(SIZES, ONE, seed=2, epoch=5), plan(SIZES, ONE, seed=1, epoch=6), plan(SIZES, ONE, 1, UNSEEN)):
        assert (first.lengths != other.lengths).mean() > 0.5


def test_settings_that_do_not_fit_the_block() -> None:
    assert Corruption.of(SpanTask(), 128) == ONE
    with hftune_error("126 tokens", 3, 128) as caught:
        Corruption.of(SpanTask(max_prefix_ratio=0.99), 128)
    share = float(caught.value.hint.partition("max_prefix_ratio to ")[2].partition(",")[0])
    assert Corruption.of(SpanTask(max_prefix_ratio=share), 128).longest == 124
    with hftune_error("48 tokens", 28):
        Corruption.of(SpanTask(min_document_length=48), 32)


def test_batches_hold_every_character_and_predict_all_but_the_first() -> None:
    texts = ["Ada was born in London .", "Kim .", "Bo lives in Rome ."]
    tokenizer = char_tokenizer(texts)
    tokens = tokenize_documents(texts, tokenizer)
    assert [tokenizer.decode(tokens[row]) for row in range(3)] == texts
    rows = CorruptedRows(tokens, ONE, seed=1, mark=tokenizer.mask_token_id)
    made = [rows[4, row] for row in range(3)]
    assert [len(row["input_ids"]) for row in made] == list(rows.lengths(4))
    batch = NextTokenBatches(tokenizer.pad_token_id)(made)
    for row, ids, labels in zip(made, batch["input_ids"], batch["labels"], strict=True):
        length = len(row["input_ids"])
        assert ids[:length].tolist() == row["input_ids"].tolist()
        assert set(ids[length:].tolist()) <= {tokenizer.pad_token_id}
        assert labels[0] == -100 and torch.equal(labels[1:length], ids[1:length])
        assert set(labels[length:].tolist()) <= {-100}


def test_scores_are_means_over_tokens() -> None:
    losses = np.array([[9.0, 1.0, 2.0, 3.0], [9.0, 4.0, 7.0, 7.0]])
    hits = np.array([[1.0, 1.0, 0.0, 1.0], [1.0, 0.0, 1.0, 1.0]])
    scores = span_scores(losses, hits, lengths=[4, 2], prefix_lengths=[2, 1], characters=[3, 1])
    assert scores["loss"] == 2.5 and scores["span_loss"] == 3.0
    assert scores["perplexity"] == pytest.approx(math.exp(2.5))
    assert scores["bits_per_character"] == pytest.approx(2.5 / math.log(2))
    assert scores["accuracy"] == 0.5 and scores["span_accuracy"] == pytest.approx(1 / 3)
    assert scores["span_exact_match"] == 0.0, "a span is wrong that has one wrong token, the first or the last"
    for lengths, reported in (([4, 2], [3, 1]), ([2, 2], [1, 1])):
        assert span_scores(losses, hits, lengths, reported, [1, 1])["span_exact_match"] == 0.5
    pieces = span_scores(losses, hits, [4, 2], [2, 1], characters=[9, 3])
    assert pieces["bits_per_character"] == pytest.approx(10 / 12 / math.log(2)), "four tokens, twelve characters"


def test_counting_baselines_are_distributions_and_bigrams_know_their_neighbors() -> None:
    rows = [np.array([1, 2, 1, 2, 1, 2]), np.array([1, 2, 3])]
    counts = count_tokens([rows], vocabulary=5)
    every = np.arange(5)
    assert counts.unigram.sum() == pytest.approx(1.0)
    assert counts.bigram(np.full(5, 2), every).sum() == pytest.approx(1.0)
    # 1 is followed by 2 in all four cases, and 2 makes up 4 of the 7 tokens that follow one: (4 + 5 · 5/12) / (4 + 5).
    assert counts.bigram(np.array([1]), np.array([2]))[0] == pytest.approx((4 + 5 * 5 / 12) / 9)
    assert counts.successors[:3].tolist() == [2, 2, 1]
    found = span_baselines(rows, rows, [1, 1], [5, 2], 5)
    assert found["bigram"]["loss"] < found["unigram"]["loss"]


CORPUS = [
    f"{name} {verb} in {place} ."
    for name in ("Ada", "Bo", "Cy", "Dee")
    for verb in ("was born", "lives", "died")
    for place in ("Rome", "Oslo", "Lima")
]


@pytest.fixture(scope="module")
def corpus_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "people.txt"
    path.write_text("\n".join(CORPUS) + "\n", encoding="utf-8")
    return path


SHAPE = {
    "model.num_hidden_layers": 1,
    "model.num_attention_heads": 2,
    "model.hidden_size": 16,
    "model.block_size": 48,
    "model.attention": "rope",
}


def recipe(corpus: Path, **changes: Any) -> Recipe:
    return load_recipe(
        None,
        {
            "data.dataset_name": str(corpus),
            "model.model_name_or_path": "scratch:mingpt",
            **SHAPE,
            "train.num_train_epochs": 3,
            "train.per_device_train_batch_size": 8,
            "train.learning_rate": 1e-2,
            **changes,
        },
        task="span",
    )


@torch.no_grad()
def writes_one_space(model: Any, tokenizer: Any) -> None:
    """Make it look at the last token alone, and write a space after a mark and a mark after a space."""
    mark, space = tokenizer.mask_token_id, tokenizer.convert_tokens_to_ids(" ")
    for name, parameter in model.named_parameters():
        if not name.endswith("norm.weight"):
            parameter.zero_()
    tokens, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    tokens[mark, 0] = tokens[space, 1] = head[space, 0] = head[mark, 1] = 1.0


class Writing(ProgressReporter):
    """Hears how many spans are written."""

    def __init__(self) -> None:
        self.counts, self.done = False, list[int]()

    def begin(self, total: int, unit: str) -> None:
        self.counts = unit.startswith("generating spans")

    def advance(self, done: int, facts: Any) -> None:
        self.done += [done] if self.counts else []


@pytest.mark.renders
def test_the_saved_model_is_scored_and_knows_the_text_better_than_counting(corpus_file: Path, tmp_path: Path) -> None:
    wanted = recipe(corpus_file, **{"train.num_train_epochs": 25, "train.eval_steps": 60})
    result = train(wanted, tmp_path / "run")
    validation = result.metrics["splits"]["validation"]
    assert validation["loss"] == pytest.approx(result.metrics["selection"]["score"], rel=1e-5), (
        "one loss, in training and after"
    )
    assert validation["loss"] < result.metrics["baselines"]["bigram"]["validation"]["loss"]
    assert (
        result.metrics["baselines"]["bigram"]["validation"]["loss"]
        < result.metrics["baselines"]["unigram"]["validation"]["loss"]
    )
    rows = result.run.read_predictions("validation")
    assert len(rows) == len(CORPUS)
    for row in rows:
        prefix, _, suffix = row["text"].partition(MASK)
        assert any(text.startswith(f"{prefix}{row['gold']}{suffix}") for text in CORPUS), "spaces of a span are its own"
    assert "hftune train" in result.run.report.read_text(encoding="utf-8")

    tokenizer = AutoTokenizer.from_pretrained(result.run.model)
    model = AutoModelForCausalLM.from_pretrained(result.run.model)
    for row in rows[:5]:
        ids = torch.tensor([tokenizer(f"{row['text']}{MASK}{row['gold']}{MASK}")["input_ids"]])
        assert model(ids, labels=ids).loss.item() == pytest.approx(row["loss"], rel=1e-4)

    further = {"model.model_name_or_path": str(result.run.path), **dict.fromkeys(SHAPE)}
    job = assemble(recipe(corpus_file, **further), RunDir(tmp_path / "further"), ProgressReporter())
    assert same(job.trainer.model.state_dict(), model.state_dict()), "goes on from the run's weights"
    strange = tmp_path / "strange.txt"
    strange.write_text("Zoë was born in Åbo .\nZoë died in Rome .\n", encoding="utf-8")
    with hftune_error("'ë' (U+00EB)"):
        assemble(recipe(strange, **further), RunDir(tmp_path / "strange"), ProgressReporter())


def test_exact_matches_are_what_is_written_in_batches(tmp_path: Path) -> None:
    corpus = tmp_path / "spaces.txt"
    corpus.write_text("".join(f"o{' ' * size}o\n" for size in range(4, 34)), encoding="utf-8")
    changes = {"train.per_device_eval_batch_size": 7, "task.corruption_rate": 0.08}
    job = assemble(recipe(corpus, **changes), RunDir(tmp_path / "run"), ProgressReporter())
    writes_one_space(job.trainer.model, job.tokenizer)
    job.task.save(job.trainer.model, job.tokenizer, job.data, tmp_path / "model")
    writing = Writing()
    found = job.task.evaluate(tmp_path / "model", job.data, ["validation"], writing)
    rows = found.predictions["validation"]
    assert {row["label"] for row in rows} == {" "} and {"  ", "o"} <= {row["gold"] for row in rows}
    right = np.mean([row["gold"] == " " for row in rows])
    assert 0 < right < 1 and found.splits["validation"]["span_exact_match"] == pytest.approx(right), (
        "one space is not two"
    )
    assert writing.done[-1] == 30 and np.diff([0, *writing.done]).max() <= 7


def test_validation_is_scored_on_the_same_sequences_whatever_the_seed(corpus_file: Path) -> None:
    made = []
    for seed in (1, 2):
        task = task_class("span")(recipe(corpus_file, **{"train.seed": seed}))
        data = task.load_data()
        inputs = task.prepare(data, task.load_tokenizer(data))
        assert isinstance(inputs.validation, FixedRows)
        made.append(([row.tolist() for row in inputs.validation.rows], inputs.train[0, 3]["input_ids"].tolist()))
    assert made[0][0] == made[1][0]
    assert made[0][1] != made[1][1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.model_name_or_path": "scratch:bert-tiny", **dict.fromkeys(SHAPE)}, ["next token"]),
        ({"method.kind": "lora"}, ["task span", "all parameters"]),
        ({"train.metric_for_best_model": "f1"}, ["validation"]),
    ],
)
def test_requests_that_can_not_be_carried_out(
    corpus_file: Path, tmp_path: Path, changes: dict[str, Any], message: list[str]
) -> None:
    with hftune_error(*message):
        assemble(recipe(corpus_file, **changes), RunDir(tmp_path), ProgressReporter())


def test_characters_that_are_not_learned_are_reported(
    corpus_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "train.txt").write_text(corpus_file.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "valid.txt").write_text("Zoë lives in Rome .\n", encoding="utf-8")
    assemble(recipe(tmp_path), RunDir(tmp_path / "run"), ProgressReporter())
    assert mentions(caplog.text, "validation", "1 of 19 characters", "'ë' (U+00EB) × 1")
    char_tokenizer(["no capitals ."]).save_pretrained(tmp_path / "few")
    with hftune_error("unknown to the tokenizer"):
        assemble(
            recipe(corpus_file, **{"model.tokenizer_name": str(tmp_path / "few")}),
            RunDir(tmp_path / "run"),
            ProgressReporter(),
        )


def test_characters_of_other_text_are_reported_when_a_run_is_scored_on_it(
    corpus_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "train.txt").write_text(corpus_file.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "valid.txt").write_text("Zoë lives in Rome .\n", encoding="utf-8")
    train(recipe(tmp_path, **{"train.max_steps": 1}), tmp_path / "run")
    assert caplog.text.count("characters are unknown") == 1, "not again when the run is scored"
    (tmp_path / "other.txt").write_text("Bo lives in Åbo .\n", encoding="utf-8")
    settings = ModelSection(model_name_or_path=str(tmp_path / "run"))
    evaluate(EvaluationRequest(settings.model_name_or_path, settings, str(tmp_path / "other.txt")))
    assert mentions(caplog.text, "other.txt", "1 of 17 characters", "'Å' (U+00C5) × 1")


@pytest.mark.parametrize("tokenizer_type", ["char", "bpe"])
def test_text_that_is_never_seen_is_reported(tmp_path: Path, tokenizer_type: str) -> None:
    corpus = tmp_path / "long.txt"
    corpus.write_text("".join(f"{number} {' '.join('xyz'[number:] * 60)}\n" for number in range(2)), encoding="utf-8")
    for changes, reported in (({}, True), ({"task.crop": "random"}, False), ({"model.block_size": 600}, False)):
        task = task_class("span")(recipe(corpus, **{"model.tokenizer_type": tokenizer_type, **changes}))
        data = task.load_data()
        notes = task.prepare(data, task.load_tokenizer(data)).notes
        assert bool(notes) == reported
    job = assemble(
        recipe(corpus, **{"model.tokenizer_type": tokenizer_type}), RunDir(tmp_path / "run"), ProgressReporter()
    )
    assert mentions(job.inputs.notes[0], "42 tokens")
    whole = recipe(
        corpus, **{"model.tokenizer_type": tokenizer_type, "model.block_size": 600, "task.min_document_length": 400}
    )
    notes = assemble(whole, RunDir(tmp_path / "whole"), ProgressReporter()).inputs.notes
    assert notes == ("no document is truncated: none has more tokens than task.min_document_length (400)",)


def test_nothing_is_held_out_unless_asked(corpus_file: Path) -> None:
    section = recipe(corpus_file).data
    corpus = load_texts(section)
    assert corpus.validation_is_train and set(corpus.train) == set(CORPUS) and set(corpus.validation) <= set(CORPUS)
    apart = load_texts(section.model_copy(update={"validation_size": 0.25}))
    assert not apart.validation_is_train and not set(apart.train) & set(apart.validation)
    assert len(apart.validation) == len(CORPUS) // 4 and set(apart.train) | set(apart.validation) == set(CORPUS)


def asked_for(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Recipe:
    """The recipe of a command line; nothing is trained."""
    seen: list[Recipe] = []

    def dry_run(wanted: Recipe, *_: Any, **__: Any) -> Any:
        seen.append(wanted)
        raise HftuneError("enough", hint="enough")

    monkeypatch.setattr("hftune.pipeline.dry_run.dry_run", dry_run)
    result = CliRunner().invoke(cli.app, ["pretrain", *arguments, "--dry-run"], prog_name="hftune")
    assert len(seen) == 1, result.stderr
    return seen[0]


def test_the_command_line_names_text_model_and_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = asked_for(monkeypatch)
    assert alone == load_recipe("pretrain/births-span")
    text = asked_for(monkeypatch, "--corpus", "wiki.txt", "--attention", "vanilla", "--epochs", "7")
    assert (text.data.dataset_name, text.model.model_name_or_path, text.model.attention) == (
        "wiki.txt",
        "scratch:mingpt",
        "vanilla",
    )
    assert (text.train.num_train_epochs, text.train.optim) == (7, "muon"), "the recipe for any text, and what was typed"
    other = asked_for(monkeypatch, "--corpus", "wiki.txt", "--model", "runs/a")
    assert (other.model.model_name_or_path, other.model.attention, other.task.kind) == ("runs/a", None, "span")
    named = asked_for(monkeypatch, "--recipe", "pretrain/births-real", "--set", "task.num_spans=2")
    assert isinstance(named.task, SpanTask) and (named.task.num_spans, named.task.min_document_length) == (2, 24)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--objective", "sapn"], ["mean 'span'"]),
        (["--recipe", "classify/reviews"], ["`hftune classify`"]),
        (["--recipe", "classify/reviews", "--objective", "span"], ["Run `hftune classify`"]),
        (["--attention", "sparse"], ["vanilla, rope"]),
        (
            ["--model", "scratch:bert-tiny", "--attention", "rope"],
            ["scratch:bert-tiny", "attention", "num_hidden_layers"],
        ),
    ],
)
def test_the_command_line_refuses(arguments: list[str], message: list[str]) -> None:
    result = CliRunner().invoke(cli.app, ["pretrain", *arguments], prog_name="hftune")
    assert result.exit_code == 2 and mentions(result.stderr, *message)
