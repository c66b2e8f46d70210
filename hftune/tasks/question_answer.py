"""Answering questions with a causal language model: ``question ⁇ answer ⁇``, loss on the answer only. One of TASKS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

from hftune.config.data import QuestionData
from hftune.config.model import NO_TRUST, ModelSection, Trust
from hftune.config.recipe import Recipe
from hftune.config.section import expect
from hftune.data.questions import Questions, QuestionSplits, load_questions, read_text
from hftune.errors import HftuneError
from hftune.evaluation.baselines import commonest_answer
from hftune.evaluation.knowledge import answers_collapsed, knowledge
from hftune.models.answerer import Answerer, check_marks, sequences
from hftune.models.causal import load_causal_lm
from hftune.models.load import LoadedModel, load_config, load_tokenizer
from hftune.models.positions import max_positions
from hftune.models.token_scores import IGNORED, NextTokenBatches
from hftune.runs.naming import public_name
from hftune.tasks.answers import answer_split, constant_baseline
from hftune.tasks.question_checks import refuse_long, refuse_marks, refuse_unknown
from hftune.tasks.rows import Encoded, TokenizedRows
from hftune.tasks.seen import Seen
from hftune.tasks.task import DataFacts, Evaluation
from hftune.training.inputs import TrainingInputs
from hftune.training.progress import Listener

PROBE_ROWS = 8
SLACK = 2
"""How many times as many tokens as the longest training answer an answer may have before it is cut off."""
SCORES = ("exact_match", "loss")


class QuestionAnswering:
    """Fine-tune a causal language model to answer."""

    def __init__(self, recipe: Recipe) -> None:
        """The recipe is all that a task knows."""
        self.recipe = recipe
        self.section = expect(recipe.data, QuestionData)

    def load_data(self) -> QuestionSplits:
        """Read and check the questions."""
        data = load_questions(self.section)
        for rows in data.named.values():
            refuse_marks(rows)
        return data

    def describe(self, data: QuestionSplits) -> DataFacts:
        """Rows, fingerprints and what was done to them."""
        named = data.named
        prints = {name: rows.fingerprint() for name, rows in named.items()}
        return DataFacts(data.source, {name: len(rows) for name, rows in named.items()}, prints, data.notes)

    def load_tokenizer(self, data: QuestionSplits) -> PreTrainedTokenizerBase:
        """The checkpoint's own; for a fresh model made of the corpus, line by line, and the training questions."""
        beside = data.corpus if self.recipe.model.from_scratch else None
        corpus = [] if beside is None else read_text(beside).splitlines()
        tokenizer = load_tokenizer(self.recipe.model, [*corpus, *data.train.questions, *data.train.known])
        check_marks(tokenizer, self.recipe.model.model_name_or_path)
        return tokenizer

    def prepare(self, data: QuestionSplits, tokenizer: PreTrainedTokenizerBase) -> TrainingInputs:
        """Tokenize train and validation; of test only the lengths are looked at."""
        self._check(data, tokenizer)
        train, validation = _tokenize(data.train, tokenizer), _tokenize(data.validation, tokenizer)
        batches = NextTokenBatches(int(tokenizer.pad_token_id))

        def collate(rows: list[dict[str, Any]]) -> Mapping[str, Tensor]:
            return batches([{"input_ids": row["input_ids"], "first": row["labels"]} for row in rows])

        return TrainingInputs(
            train=train,
            validation=validation,
            collator=collate,
            train_lengths=train.lengths,
            validation_lengths=validation.lengths,
            compute_metrics=_mean_match,
            loss=None,
            tokens=train.fingerprint,
            preprocess_logits=forced_match,
        )

    def build_model(self, data: QuestionSplits, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
        """The checkpoint of ``--from``, or fresh weights."""
        return load_causal_lm(self.recipe.model, tokenizer)

    def baselines(self, data: QuestionSplits, splits: Sequence[str]) -> dict[str, dict[str, dict[str, Any]]]:
        """Always the answer that is most frequent in train."""
        return constant_baseline(commonest_answer(data.train.known), data, splits)

    def probe(self, data: QuestionSplits) -> list[dict[str, Any]]:
        """The first questions of validation."""
        return [{"text": question} for question in data.validation.questions[:PROBE_ROWS]]

    def outputs(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """What the model expects each answer to begin with."""
        was_training = model.training
        found = _probe_outputs(Answerer(model.eval(), tokenizer, longest=1), rows)
        model.train(was_training)
        return found

    @staticmethod
    def reload_outputs(folder: Path, rows: list[dict[str, Any]], trust: Trust = NO_TRUST) -> dict[str, Any]:
        """The same from the saved folder."""
        section = ModelSection(model_name_or_path=str(folder), **trust)
        return _probe_outputs(Answerer.load(str(folder), section), rows)

    def save(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data: QuestionSplits, folder: Path
    ) -> None:
        """Weights, code, tokenizer: what pipeline("text-generation") and `hftune predict` load."""
        lengths = [len(ids) - asked for ids, asked in sequences(tokenizer, data.train.questions, data.train.known)]
        # Where the training answers are words of one piece, another word as long may need one for each of its bytes.
        spelled = max(len(answer.encode()) for answer in data.train.known) + 1
        Answerer(model, tokenizer, max(SLACK * max(lengths), spelled)).save(
            folder,
            base_model=public_name(self.recipe.model.model_name_or_path),
            base_revision=self.recipe.model.model_revision,
            method=self.recipe.method.kind,
            data=public_name(data.source),
        )

    def evaluate(
        self, folder: Path, data: QuestionSplits, splits: Sequence[str], listener: Listener, trust: Trust = NO_TRUST
    ) -> Evaluation:
        """Let the saved model answer each split; score those whose answers are known."""
        section = ModelSection(model_name_or_path=str(folder), **trust)
        answerer = Answerer.load(str(folder), section)
        seen = Seen.of(self.recipe.model, self.section, data.train.questions)
        for note in seen.notes:
            listener.note(note)
        scores, predictions = {}, {}
        for name in splits:
            predictions[name], found = answer_split(
                answerer, data.named[name], seen, self.recipe.train.per_device_eval_batch_size, listener, name
            )
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

    def _check(self, data: QuestionSplits, tokenizer: PreTrainedTokenizerBase) -> None:
        """Whatever would go wrong later, or in silence."""
        recipe = self.recipe
        if recipe.method.kind != "full":
            raise HftuneError(
                f"method.kind is {recipe.method.kind!r}, but answering questions moves every weight",
                hint="leave --method out",
            )
        if self.recipe.train.best_metric not in SCORES:
            raise HftuneError(
                f"train.metric_for_best_model is {self.recipe.train.best_metric!r}, which is not among the "
                "validation scores",
                hint=f"use one of: {', '.join(SCORES)}",
            )
        block = max_positions(load_config(recipe.model, tokenizer))
        for rows in data.named.values():
            refuse_long(rows, tokenizer, block)
        refuse_unknown(data, tokenizer, recipe.model.model_name_or_path)


def forced_match(logits: Tensor, labels: Tensor) -> Tensor:
    """Whether each row's answer is the one that greedy decoding gives: [B, T, V] and [B, T] → [B, 1].

    Greedy decoding writes the right answer, in its usual tokens, if and only if after every beginning of it the
    likeliest next token is the right one: one forward pass over the right answers tells, and nothing need be decoded.
    Pieces can spell a word in another way too; such an answer is right when it is decoded, and not counted here.
    """
    wanted = labels[:, 1:]
    right = (logits[:, :-1].argmax(-1) == wanted) | (wanted == IGNORED)
    return right.all(1, keepdim=True).to(torch.float32)


def _tokenize(rows: Questions, tokenizer: PreTrainedTokenizerBase) -> TokenizedRows:
    """Rows whose label is where the answer begins; the collator makes token labels of it."""
    encoded = sequences(tokenizer, rows.questions, rows.known)
    return TokenizedRows(Encoded.of({"input_ids": ids} for ids, _ in encoded), [asked for _, asked in encoded])


def _mean_match(outcome: EvalPrediction) -> dict[str, float]:
    return {"exact_match": float(np.asarray(outcome.predictions, dtype=np.float64).mean())}


def _probe_outputs(answerer: Answerer, rows: list[dict[str, Any]]) -> dict[str, Any]:
    questions = [str(row["text"]) for row in rows]
    (ids, _), *_ = sequences(answerer.tokenizer, questions[:1])
    tokens = answerer.tokenizer.convert_ids_to_tokens(ids)
    return {"logits": answerer.first_logits(questions).tolist(), "tokens": tokens}
