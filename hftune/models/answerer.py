"""A language model that answers questions: ``question ⁇ answer ⁇``, decoded greedily, in batches, with a cache.

``hftune.tasks.question_answer`` trains and scores with it, ``hftune.answering`` asks it, ``hftune.verify`` reloads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.config.model import ModelSection
from hftune.errors import HftuneError
from hftune.models.causal import load_saved_lm, save_causal_lm
from hftune.models.chars import MASK
from hftune.models.decoding import Decoding, Row, context_of, decode
from hftune.models.token_scores import NextTokenBatches, score_sequences
from hftune.models.vocabulary import as_text

TASK = "answer"


@dataclass(frozen=True)
class Answer:
    """What the model says."""

    text: str
    confidence: float
    """Probability of the whole answer with its end mark, which counts for an answer that was cut off too."""
    ended: bool
    """Whether the model ended it itself; it is cut off where it grows too long, or the block is full."""


@dataclass(frozen=True)
class Answerer:
    """Questions in, answers out."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    longest: int
    """Most tokens of an answer, its end mark among them; a model that rambles is stopped there."""

    def answers(
        self,
        questions: Sequence[str],
        *,
        batch_size: int = 256,
        advance: Callable[[int], None] = lambda rows: None,
    ) -> list[Answer]:
        """The likeliest answer token by token, in the order of the questions, whatever the batch size."""
        marked = next((question for question in questions if MASK in question), None)
        if marked is not None:
            raise HftuneError(
                f"a question holds {MASK}, which is set behind every question anyway: {marked[:60]!r}",
                hint=f"leave {MASK} out; it is typed for transformers' pipeline only",
            )
        prompts = [ids for ids, _ in sequences(self.tokenizer, questions)]
        block = context_of(self.model)
        for question, prompt in zip(questions, prompts, strict=True):
            if len(prompt) >= block:
                raise too_long(question, len(prompt), block)
        return self.completed(prompts, batch_size=batch_size, advance=advance)

    def completed(
        self, prompts: Sequence[list[int]], *, batch_size: int = 256, advance: Callable[[int], None] = lambda rows: None
    ) -> list[Answer]:
        """What follows each row of tokens, up to the next mark."""
        mark = int(self.tokenizer.mask_token_id)
        rows = [Row(prompt) for prompt in prompts]
        how = Decoding[Row](most=self.longest, ends=frozenset({mark}), closing=mark, advance=advance)
        decode(self.model, rows, how, batch_size=batch_size)
        said = (self.tokenizer.decode([token for token in row.written if token != mark]).strip() for row in rows)
        return [Answer(text, exp(row.log_probability), row.ended) for text, row in zip(said, rows, strict=True)]

    def losses(
        self, questions: Sequence[str], answers: Sequence[str], *, batch_size: int = 256
    ) -> tuple[list[float], list[int]]:
        """Negative log likelihood of each given answer with its end mark, and how many tokens it has."""
        whole = sequences(self.tokenizer, questions, answers)
        rows = [{"input_ids": ids, "first": asked} for ids, asked in whole]
        collate = NextTokenBatches(int(self.tokenizer.pad_token_id))
        losses, _ = score_sequences(self.model, rows, collate, batch_size=batch_size)
        return losses.sum(1, dtype="float64").tolist(), [len(ids) - asked for ids, asked in whole]

    def first_logits(self, questions: Sequence[str]) -> Tensor:
        """Logits of the first token of each answer, [B, V]: what a saved model is compared by."""
        rows = [{"input_ids": ids} for ids, _ in sequences(self.tokenizer, questions)]
        ids = NextTokenBatches(int(self.tokenizer.pad_token_id))(rows)["input_ids"]
        with torch.inference_mode():
            logits: Tensor = self.model(input_ids=ids.to(self.model.device), use_cache=False).logits.float().cpu()
        return logits[torch.arange(len(rows)), torch.tensor([len(row["input_ids"]) - 1 for row in rows])]

    def save(self, folder: Path, **facts: Any) -> None:
        """Write what ``load`` reads; the model's code goes along."""
        self.model.generation_config.do_sample = False  # pipeline() would draw answers by lot
        save_causal_lm(self.model, self.tokenizer, folder, task=TASK, longest_answer=self.longest, **facts)

    @classmethod
    def load(cls, name: str, section: ModelSection | None = None, device: str | None = None) -> Answerer:
        """From a run, a folder or a Hub id that hftune has trained to answer."""
        model, tokenizer, facts = load_saved_lm(name, section, device)
        if facts.get("task") != TASK:
            raise HftuneError(
                f"{name} was not trained to answer questions",
                hint=f"train it first: hftune finetune --from {name} --data births",
            )
        return cls(model, tokenizer, int(facts["longest_answer"]))


def sequences(
    tokenizer: PreTrainedTokenizerBase, questions: Sequence[str], answers: Sequence[str] | None = None
) -> list[tuple[list[int], int]]:
    """``question ⁇`` or ``question ⁇ answer ⁇`` as token ids, and how many of them are the question's.

    Training and answering both come through here, so they can't differ.
    """
    mark = tokenizer.mask_token_id
    if not len(questions):
        return []
    how = {"add_special_tokens": False, **as_text(tokenizer)}
    asked = [[*ids, mark] for ids in tokenizer(list(questions), **how)["input_ids"]]
    if answers is None:
        return [(ids, len(ids)) for ids in asked]
    told = [[*ids, mark] for ids in tokenizer(list(answers), **how)["input_ids"]]
    return [(question + answer, len(question)) for question, answer in zip(asked, told, strict=True)]


def check_marks(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Refuse a vocabulary that has nothing to mark the ends of question and answer with."""
    if tokenizer.mask_token_id is None or tokenizer.pad_token_id is None:
        lacking = "mask" if tokenizer.mask_token_id is None else "padding"
        raise HftuneError(
            f"{name} has another vocabulary than this task needs: its tokenizer has no {lacking} token",
            hint="take a run of `hftune pretrain`, whose tokenizer has ⁇, or start fresh with --model scratch:mingpt",
        )


def too_long(question: str, tokens: int, block: int, where: str = "") -> HftuneError:
    """The error for a question that leaves no room for an answer."""
    return HftuneError(
        f"{where + ': the' if where else 'a'} question has {tokens} tokens with its mark, and the model's block of "
        f"{block} leaves no room for an answer: {question[:60]!r}…",
        hint="shorten the question, or take a model with a larger block",
    )
