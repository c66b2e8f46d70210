"""Task ``answer``: a causal language model answers questions: ``question ⁇ answer ⁇``, with loss on the answer only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import exp
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

from hftune.config.section import expect
from hftune.data.corpus import lines_of
from hftune.data.questions import Questions, QuestionSplits, load_question_split, load_questions
from hftune.data.settings import QuestionData
from hftune.errors import HftuneError
from hftune.evaluation.knowledge import answer_scores, answers_collapsed, knowledge
from hftune.models.causal import IGNORED, NextTokenBatches
from hftune.models.load import load_config, load_tokenizer, max_positions
from hftune.models.qa import QuestionAnswerer, sequences, too_long
from hftune.models.settings import NO_TRUST, ModelSection, Trust
from hftune.models.tokenizer_stats import count_unknown, unknown_in
from hftune.progress import ProgressReporter, progress_bar
from hftune.runs.directory import safe
from hftune.tasks.answer_baselines import (
    best_constant,
    checked_questions,
    constant_baseline,
    most_frequent_answer,
    refuse_marks,
)
from hftune.tasks.contamination import Contamination, contamination_of
from hftune.tasks.language_model import LanguageModel
from hftune.tasks.task import (
    PROBE_ROWS,
    Evaluation,
    EvaluationRequest,
    EvaluationResult,
    Prediction,
    Predictor,
    Row,
    SplitScores,
    TaskRecipe,
    in_chunks,
    own_data,
    own_splits,
    run_of,
    saved_section,
    split_named,
    warn_of_overlap,
)
from hftune.tasks.tokens import Encoded, TokenizedRows
from hftune.training.inputs import TrainingInputs

logger = logging.getLogger(__name__)

ANSWER_LENGTH_FACTOR = 2
"""An answer is truncated at this multiple of the tokens of the longest training answer."""


class QuestionAnswering(LanguageModel[QuestionSplits]):
    """Fine-tune a causal language model for question answering."""

    marks: ClassVar[bool] = True
    trains_all: ClassVar[bool] = True
    scores: ClassVar[tuple[str, ...]] = ("exact_match", "loss")
    """What is computed during training; SCORES has those of a finished run."""

    def __init__(self, recipe: TaskRecipe) -> None:
        super().__init__(recipe)
        self.section = expect(recipe.data, QuestionData)

    def load_data(self) -> QuestionSplits:
        """Read and check the questions."""
        return checked_questions(self.section)

    def make_tokenizer(self, data: QuestionSplits) -> PreTrainedTokenizerBase:
        """The checkpoint's own; for a model from scratch trained on the corpus, line by line, and the questions."""
        path = data.corpus if self.recipe.model.from_scratch else None
        corpus = [] if path is None else lines_of(path).all_texts()
        texts = [*corpus, *data.train.questions, *data.train.required_answers]
        return self.check_tokenizer(load_tokenizer(self.recipe.model, texts))

    def prepare(self, data: QuestionSplits, tokenizer: PreTrainedTokenizerBase) -> TrainingInputs:
        """Tokenize train and validation; of test only the lengths are checked."""
        self._check(data, tokenizer)
        train, validation = _tokenize(data.train, tokenizer), _tokenize(data.validation, tokenizer)
        batches = NextTokenBatches(int(tokenizer.pad_token_id))

        # The label of a row is the place where its answer begins; of that the collator makes a label per token: -100
        # for those of the question, so that the loss is of the answer alone.
        def collate(rows: list[dict[str, Any]]) -> Mapping[str, Tensor]:
            return batches([{"input_ids": row["input_ids"], "first": row["labels"]} for row in rows])

        return TrainingInputs(
            train=train,
            validation=validation,
            collator=collate,
            train_lengths=train.lengths,
            validation_lengths=validation.lengths,
            compute_metrics=_mean_match,
            loss=None,  # the model's own divides by the answer tokens of the whole step
            tokens=train.fingerprint,
            preprocess_logits=forced_match,
        )

    def baselines(self, data: QuestionSplits, splits: Sequence[str]) -> dict[str, SplitScores]:
        """Always the most frequent training answer."""
        return constant_baseline(most_frequent_answer(data.train.required_answers), data, splits)

    def probe(self, data: QuestionSplits) -> list[dict[str, Any]]:
        """The first questions of validation."""
        return [{"text": question} for question in data.validation.questions[:PROBE_ROWS]]

    @classmethod
    def load_saved(cls, model: str, settings: ModelSection) -> PreTrainedModel:
        """The causal language model that answers."""
        return QuestionAnswerer.load(model, settings).model

    def outputs(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Logits of the first token of each answer."""
        was_training = model.training
        found = _probe_outputs(QuestionAnswerer(model.eval(), tokenizer, max_answer_tokens=1), rows)
        model.train(was_training)
        return found

    @staticmethod
    def reload_outputs(folder: Path, rows: list[dict[str, Any]], trust: Trust = NO_TRUST) -> dict[str, Any]:
        """The same from the saved folder."""
        return _probe_outputs(QuestionAnswerer.load(str(folder), saved_section(folder, trust)), rows)

    def save(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: QuestionSplits, folder: Path
    ) -> None:
        """Weights, code, tokenizer: what pipeline("text-generation") and `hftune predict` load."""
        lengths = [
            len(ids) - asked for ids, asked in sequences(tokenizer, data.train.questions, data.train.required_answers)
        ]
        # A limit for answers that never end. A training answer can be one BPE token, where another word of the same
        # length takes one token per byte.
        spelled = max(len(answer.encode()) for answer in data.train.required_answers) + 1
        answerer = QuestionAnswerer(model, tokenizer, max(ANSWER_LENGTH_FACTOR * max(lengths), spelled))
        answerer.save(folder, **self.provenance(data.source))

    def evaluate(
        self,
        folder: Path,
        data: QuestionSplits,
        splits: Sequence[str],
        progress: ProgressReporter,
        trust: Trust = NO_TRUST,
    ) -> Evaluation:
        """Answer the questions of each split; score the splits whose answers are known."""
        answerer = QuestionAnswerer.load(str(folder), saved_section(folder, trust))
        seen = contamination_of(self.recipe.model).with_questions(self.section, data.train.questions, "this run")
        for note in seen.notes:
            progress.note(note)
        size = self.recipe.train.per_device_eval_batch_size
        scores, predictions = {}, {}
        for name in splits:
            predictions[name], found = answer_split(answerer, data.named[name], seen, size, progress, name)
            if found is not None:
                scores[name] = found
        reasons = {name: answers_collapsed(predictions[name]) for name in scores}
        return Evaluation(
            splits=scores,
            predictions=predictions,
            collapsed=next((f"{name}: {reason}" for name, reason in reasons.items() if reason), None),
            extras={
                "knowledge": {name: knowledge(rows) for name, rows in predictions.items()},
                "pretraining": seen.as_dict(),
            },
        )

    @classmethod
    def predictor(cls, model: str, settings: ModelSection) -> Predictor:
        """Questions → answers."""
        answerer = QuestionAnswerer.load(model, settings)
        # Only once there is a question: the texts of pretraining are read for it.
        where = cache(lambda: contamination_of(settings))
        return lambda rows, batch_size: stream(answerer, rows, batch_size=batch_size, where=where)

    @classmethod
    def score(cls, request: EvaluationRequest, progress: ProgressReporter) -> EvaluationResult:
        """Answer the questions of one split; scores if the right answers are known, predictions in any case."""
        if request.columns or request.metrics:
            raise HftuneError(
                f"{request.model} answers questions, which have no columns to name and one score, exact match",
                hint="leave --text-column, --pair-column, --label-column and --metric out",
            )
        progress.stage("loading model")
        answerer = QuestionAnswerer.load(request.model, request.settings)
        progress.stage("loading data")
        own = own_data(request.model, QuestionData)
        if request.data is None:
            source, splits = own_splits(request.model, own, load_questions)
            answered = splits.test is not None and splits.test.answers is not None
            split = request.split or ("test" if answered else "validation")
            rows = split_named(splits.named, split)
        else:
            source = request.data
            split, rows = load_question_split(QuestionData(dataset_name=source), request.split)
        refuse_marks(rows)
        refuse_long(rows, answerer.tokenizer, max_positions(answerer.model.config))
        if unknown := unknown_in(answerer.tokenizer, texts_of(rows), rows.where):
            progress.warn(unknown)
        if own is not None and split != "train":
            warn_of_overlap(lambda: load_questions(own).train.questions, rows.questions, "questions", progress)
        seen = contamination_of(request.settings, rows.questions)
        for note in seen.notes:
            progress.note(note)
        predictions, scores = answer_split(answerer, rows, seen, request.batch_size, progress, split)
        return EvaluationResult(
            source=source,
            split=split,
            scores=scores or {},
            baselines=best_constant(rows),
            collapsed=answers_collapsed(predictions) if scores else None,
            predictions=predictions,
            extras={"knowledge": {split: knowledge(predictions)}},
            lines=[" ".join(row["label"].split()) for row in predictions],
            default_file=_default_file(request, split, own_data=own is not None and own.dataset_name == source),
        )

    def _check(self, data: QuestionSplits, tokenizer: PreTrainedTokenizerBase) -> None:
        """Refuse data that would fail later, or without a message."""
        block = max_positions(load_config(self.recipe.model, tokenizer))
        for rows in data.named.values():
            refuse_long(rows, tokenizer, block)
        refuse_unknown(data, tokenizer, self.recipe.model.model_name_or_path)


def forced_match(logits: Tensor, labels: Tensor) -> Tensor:
    """Whether each answer is the one that greedy decoding gives: [B, T, V] and [B, T] → [B, 1]."""
    # Exact match without decoding. Greedy decoding generates the right answer, in its usual tokens, if and only if
    # after every prefix of it the most probable next token is the right one. Teacher forcing shows the model all these
    # prefixes in one forward pass, the one that gives the validation loss anyway. BPE tokens can spell a word in
    # another way too: such an answer counts in the final scores, which are decoded, and not here.
    wanted = labels[:, 1:]
    right = (logits[:, :-1].argmax(-1) == wanted) | (wanted == IGNORED)
    return right.all(1, keepdim=True).to(torch.float32)


def _tokenize(rows: Questions, tokenizer: PreTrainedTokenizerBase) -> TokenizedRows:
    """Examples whose label is the position where the answer begins; the collator makes token labels of it."""
    encoded = sequences(tokenizer, rows.questions, rows.required_answers)
    return TokenizedRows(Encoded.of({"input_ids": ids} for ids, _ in encoded), [asked for _, asked in encoded])


def _mean_match(outcome: EvalPrediction) -> dict[str, float]:
    return {"exact_match": float(np.asarray(outcome.predictions, dtype=np.float64).mean())}


def _probe_outputs(answerer: QuestionAnswerer, rows: list[dict[str, Any]]) -> dict[str, Any]:
    questions = [str(row["text"]) for row in rows]
    (ids, _), *_ = sequences(answerer.tokenizer, questions[:1])
    tokens = answerer.tokenizer.convert_ids_to_tokens(ids)
    return {"logits": answerer.first_logits(questions).tolist(), "tokens": tokens}


def answer_split(
    answerer: QuestionAnswerer,
    rows: Questions,
    seen: Contamination,
    batch_size: int,
    progress: ProgressReporter,
    what: str,
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Predictions of one split, and its scores if its answers are known.

    Each prediction has the question as ``text``, the right answer as ``gold`` (if it is known), the model's as
    ``label`` with its ``confidence`` and whether it ``ended``, and where the name was seen.
    """
    with progress_bar(progress, len(rows), f"answering {what}") as advance:
        answers = answerer.answer(rows.questions, batch_size=batch_size, advance=advance)
    where = seen.where(rows.questions)
    predictions: list[dict[str, Any]] = []
    for index, (question, answer) in enumerate(zip(rows.questions, answers, strict=True)):
        gold = {} if rows.answers is None else {"gold": rows.answers[index]}
        given = {"label": answer.text, "confidence": round(answer.confidence, 6), "ended": answer.ended}
        predictions.append({"id": index, "text": question, **gold, **given, **where[index]})
    if rows.answers is None:
        return predictions, None
    # Teacher forcing gives the probability of the right answer too, which greedy decoding may never reach.
    sums, counts = answerer.losses(rows.questions, rows.answers, batch_size=batch_size)
    for line, loss, tokens in zip(predictions, sums, counts, strict=True):
        line |= {"gold_probability": round(exp(-loss), 6), "loss": round(loss / tokens, 6), "tokens": int(tokens)}
    return predictions, {**answer_scores(predictions), "loss": sum(sums) / sum(counts)}


def stream(
    answerer: QuestionAnswerer, rows: Iterable[Row], *, batch_size: int, where: Callable[[], Contamination]
) -> Iterator[Prediction]:
    """Answers in the order of the questions, with where their names were seen."""
    for chunk in in_chunks(rows):
        if any("text_pair" in row for row in chunk):
            raise HftuneError("a question has one text, got a second one", hint="leave the second texts out")
        questions = [row["text"] for row in chunk]
        if unknown := unknown_in(answerer.tokenizer, questions, "the questions"):
            logger.warning(unknown)
        answers = answerer.answer(questions, batch_size=batch_size)
        for question, answer, seen in zip(questions, answers, where().where(questions), strict=True):
            yield Prediction(question, None, answer.text, {answer.text: answer.confidence}, answer.ended, seen)


# ---- Checks of the questions for a certain model ----


def refuse_long(rows: Questions, tokenizer: PreTrainedTokenizerBase, block: int | None) -> None:
    """Refuse examples that do not fit the model's block: they would be truncated, or fail during training."""
    if block is None:
        return
    encoded = sequences(tokenizer, rows.questions, rows.answers)
    for (ids, asked), question, line in zip(encoded, rows.questions, rows.lines, strict=True):
        if asked >= block:
            raise too_long(question, asked, block, where=f"{rows.where!r}, line {line}")
        if len(ids) > block:
            raise HftuneError(
                f"{rows.where!r}, line {line}: question and answer have {len(ids)} tokens with their marks, the "
                f"model's block has {block}: {question[:60]!r}",
                hint="shorten the row or leave it out, or use a model with a larger block",
            )


def refuse_unknown(data: QuestionSplits, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Report characters that the vocabulary lacks; training answers with one could never be generated."""
    answers = count_unknown(tokenizer, data.train.required_answers)
    if answers.count:
        raise HftuneError(
            f"{name} has another vocabulary than the training answers of {data.source}: {answers.describe()}",
            hint="pretrain on a corpus that has these characters, or leave those rows out",
        )
    others = [text for rows in data.named.values() for text in texts_of(rows)]
    if unknown := unknown_in(tokenizer, others, data.source):
        logger.warning(unknown)


def texts_of(rows: Questions) -> list[str]:
    """Questions, and answers if there are any."""
    return [*rows.questions, *(rows.answers or ())]


def _default_file(request: EvaluationRequest, split: str, *, own_data: bool) -> Path | None:
    """predictions/SPLIT.txt of the run; for other data with their name before the split."""
    run = run_of(request.model)
    if run is None:
        return None
    name = split if own_data or request.data is None else f"{safe(Path(request.data).stem)}-{split}"
    return run.predictions(split).with_name(f"{name}.txt")
