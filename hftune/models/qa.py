"""Question answering with a causal language model: ``question ⁇ answer ⁇``, decoded greedily, in batches, with a
cache.
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

from hftune.errors import HftuneError
from hftune.models.causal import NextTokenBatches, load_saved_lm, save_causal_lm, score_sequences
from hftune.models.decoding import Decoding, Generated, context_of, decode
from hftune.models.load import evaluation_mode
from hftune.models.settings import MASK, ModelSection
from hftune.models.tokenizer_stats import plain_text_kwargs

TASK = "answer"


@dataclass(frozen=True)
class Answer:
    """The model's answer to one question."""

    text: str
    confidence: float
    """Probability of the whole answer and its ⁇, also of an answer that was truncated."""
    ended: bool
    """Whether the model ended it, rather than the token limit or the context."""


@dataclass(frozen=True)
class QuestionAnswerer:
    """A causal language model that was trained to answer questions."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    max_answer_tokens: int
    """Longest answer in tokens, including its ⁇."""

    def answer(
        self,
        questions: Sequence[str],
        *,
        batch_size: int = 256,
        advance: Callable[[int], None] = lambda rows: None,
    ) -> list[Answer]:
        """The greedy answers, in the order of the questions; they do not depend on the batch size."""
        marked = next((question for question in questions if MASK in question), None)
        if marked is not None:
            raise HftuneError(
                f"a question has {MASK}, which is added to every question: {marked[:60]!r}",
                hint=f"leave {MASK} out; only prompts for transformers' pipeline need it",
            )
        prompts = [ids for ids, _ in sequences(self.tokenizer, questions)]
        block = context_of(self.model)
        for question, prompt in zip(questions, prompts, strict=True):
            if len(prompt) >= block:
                raise too_long(question, len(prompt), block)
        mask = int(self.tokenizer.mask_token_id)
        rows = [Generated(prompt) for prompt in prompts]
        how = Decoding[Generated](self.max_answer_tokens, frozenset({mask}), closing=mask, advance=advance)
        decode(self.model, rows, how, batch_size=batch_size)
        texts = (self.tokenizer.decode([token for token in row.new_ids if token != mask]).strip() for row in rows)
        return [Answer(text, exp(row.log_probability), row.ended) for text, row in zip(texts, rows, strict=True)]

    def losses(
        self, questions: Sequence[str], answers: Sequence[str], *, batch_size: int = 256
    ) -> tuple[list[float], list[int]]:
        """Negative log likelihood of each given answer and its ⁇, and its number of tokens."""
        whole = sequences(self.tokenizer, questions, answers)
        rows = [{"input_ids": ids, "first": asked} for ids, asked in whole]
        collate = NextTokenBatches(int(self.tokenizer.pad_token_id))
        losses, _ = score_sequences(self.model, rows, collate, batch_size=batch_size)
        return losses.sum(1, dtype="float64").tolist(), [len(ids) - asked for ids, asked in whole]

    def first_logits(self, questions: Sequence[str]) -> Tensor:
        """Logits of the first token of each answer [B, V], with which a saved model is verified."""
        rows = [{"input_ids": ids} for ids, _ in sequences(self.tokenizer, questions)]
        ids = NextTokenBatches(int(self.tokenizer.pad_token_id))(rows)["input_ids"]  # [B, T]
        with evaluation_mode(self.model):
            logits: Tensor = self.model(input_ids=ids.to(self.model.device), use_cache=False).logits.float().cpu()
        return logits[torch.arange(len(rows)), torch.tensor([len(row["input_ids"]) - 1 for row in rows])]

    def save(self, folder: Path, **metadata: Any) -> None:
        """Save model, code, tokenizer and hftune.json; ``metadata`` is added to hftune.json."""
        self.model.generation_config.do_sample = False  # pipeline() would sample answers
        save_causal_lm(self.model, self.tokenizer, folder, task=TASK, longest_answer=self.max_answer_tokens, **metadata)

    @classmethod
    def load(cls, name: str, section: ModelSection | None = None, device: str | None = None) -> QuestionAnswerer:
        """Load a run, a folder or a Hub id that hftune has trained for question answering."""
        model, tokenizer, metadata = load_saved_lm(name, section, device)
        if metadata.get("task") != TASK:
            raise HftuneError(
                f"{name} was not trained to answer questions",
                hint=f"train it first: `hftune finetune --from {name} --data births`",
            )
        return cls(model, tokenizer, int(metadata["longest_answer"]))


def sequences(
    tokenizer: PreTrainedTokenizerBase, questions: Sequence[str], answers: Sequence[str] | None = None
) -> list[tuple[list[int], int]]:
    """Token ids of ``question ⁇`` or ``question ⁇ answer ⁇``, and how many of them are the question's.

    The same for training and inference.
    """
    mask = tokenizer.mask_token_id
    if not len(questions):
        return []
    how = {"add_special_tokens": False, **plain_text_kwargs(tokenizer)}
    asked = [[*ids, mask] for ids in tokenizer(list(questions), **how)["input_ids"]]
    if answers is None:
        return [(ids, len(ids)) for ids in asked]
    answered = [[*ids, mask] for ids in tokenizer(list(answers), **how)["input_ids"]]
    return [(question + answer, len(question)) for question, answer in zip(asked, answered, strict=True)]


def check_marks(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Refuse a vocabulary without a mask or padding token."""
    if tokenizer.mask_token_id is None or tokenizer.pad_token_id is None:
        lacking = "mask" if tokenizer.mask_token_id is None else "padding"
        raise HftuneError(
            f"the tokenizer of {name} has no {lacking} token, which this task needs",
            hint="use a run of `hftune pretrain`, whose tokenizer has ⁇, or start with --model scratch:mingpt",
        )


def too_long(question: str, tokens: int, block: int, where: str = "") -> HftuneError:
    """The error for a question that leaves no room for an answer."""
    return HftuneError(
        f"{where + ': the' if where else 'a'} question has {tokens} tokens with its ⁇, and the model's context of "
        f"{block} leaves no room for an answer: {question[:60]!r}…",
        hint="shorten the question, or use a model with a larger block_size",
    )
