"""A language model that answers questions: ``question ⁇ answer ⁇``, decoded greedily, in batches, with a cache.

``hftune.tasks.question_answer`` trains and scores with it, ``hftune.answering`` asks it, ``hftune.verify`` reloads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hftune.config.model import ModelSection
from hftune.errors import HftuneError
from hftune.models.causal import load_saved_lm, save_causal_lm
from hftune.models.positions import max_positions

TASK = "answer"
IGNORED = -100


@dataclass(frozen=True)
class Answer:
    """What the model says."""

    text: str
    confidence: float
    """Probability of the whole answer, its end mark included."""


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
        """The likeliest answer letter by letter, in the order of the questions, whatever the batch size."""
        prompts = [ids for ids, _ in sequences(self.tokenizer, questions)]
        block = block_of(self.model)
        for question, prompt in zip(questions, prompts, strict=True):
            if len(prompt) >= block:
                raise too_long(question, len(prompt), block)
        found: dict[int, Answer] = {}
        with torch.inference_mode():
            for chosen in _batches([len(prompt) for prompt in prompts], batch_size, self.longest, block):
                found |= zip(chosen, self._decode([prompts[index] for index in chosen], block), strict=True)
                advance(len(chosen))
        return [found[index] for index in range(len(questions))]

    def losses(
        self, questions: Sequence[str], answers: Sequence[str], *, batch_size: int = 256
    ) -> tuple[list[float], list[int]]:
        """Negative log likelihood of each given answer with its end mark, and how many tokens it has."""
        rows = sequences(self.tokenizer, questions, answers)
        order = sorted(range(len(rows)), key=lambda index: -len(rows[index][0]))
        sums, counts = [0.0] * len(rows), [0] * len(rows)
        with torch.inference_mode():
            for start in range(0, len(order), batch_size):
                chosen = order[start : start + batch_size]
                ids, labels = padded([rows[index] for index in chosen], self.tokenizer.pad_token_id)
                logits = self.model(input_ids=ids.to(self.model.device), use_cache=False).logits.float()
                each = token_losses(logits, labels.to(logits.device))  # [B, T-1]
                for index, row, scored in zip(chosen, each, labels[:, 1:] != IGNORED, strict=True):
                    sums[index], counts[index] = float(row.double().sum()), int(scored.sum())
        return sums, counts

    def first_logits(self, questions: Sequence[str]) -> Tensor:
        """Logits of the first token of each answer, [B, V]: what a saved model is compared by."""
        rows = sequences(self.tokenizer, questions)
        ids, _ = padded(rows, self.tokenizer.pad_token_id)
        with torch.inference_mode():
            logits: Tensor = self.model(input_ids=ids.to(self.model.device), use_cache=False).logits.float().cpu()
        return logits[torch.arange(len(rows)), torch.tensor([asked - 1 for _, asked in rows])]

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

    def _decode(self, prompts: list[list[int]], block: int) -> list[Answer]:
        """Greedy decoding of one batch, padded on the left; rows that have ended leave the batch."""
        tokenizer, device = self.tokenizer, self.model.device
        width = max(map(len, prompts))
        pad, end = tokenizer.pad_token_id, tokenizer.mask_token_id
        ids = torch.tensor([[pad] * (width - len(row)) + row for row in prompts], device=device)  # [B, T]
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts], device=device)
        said: list[list[int]] = [[] for _ in prompts]
        sure = [0.0] * len(prompts)
        rows = list(range(len(prompts)))
        cache = None
        for _ in range(min(self.longest, block - width)):
            outputs = self.model(
                input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, logits_to_keep=1
            )
            cache = outputs.past_key_values
            best, token = outputs.logits[:, -1].float().log_softmax(-1).max(-1)  # each [B]
            for row, number, score in zip(rows, token.tolist(), best.tolist(), strict=True):
                sure[row] += score
                if number != end:
                    said[row].append(number)
            going = token != end
            rows = [row for row, more in zip(rows, going.tolist(), strict=True) if more]
            if not rows:
                break
            if not bool(going.all()):
                cache.batch_select_indices(going.nonzero()[:, 0])
                token, mask = token[going], mask[going]
            ids = token[:, None]
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
        texts = [tokenizer.decode(row) for row in said]
        return [
            Answer(text.strip(), float(torch.tensor(score, dtype=torch.float64).exp()))
            for text, score in zip(texts, sure, strict=True)
        ]


def sequences(
    tokenizer: PreTrainedTokenizerBase, questions: Sequence[str], answers: Sequence[str] | None = None
) -> list[tuple[list[int], int]]:
    """``question ⁇`` or ``question ⁇ answer ⁇`` as token ids, and how many of them are the question's.

    Training and answering both come through here, so they can't differ.
    """
    mark = tokenizer.mask_token_id
    if not len(questions):
        return []
    asked = [[*ids, mark] for ids in tokenizer(list(questions), add_special_tokens=False)["input_ids"]]
    if answers is None:
        return [(ids, len(ids)) for ids in asked]
    told = [[*ids, mark] for ids in tokenizer(list(answers), add_special_tokens=False)["input_ids"]]
    return [(question + answer, len(question)) for question, answer in zip(asked, told, strict=True)]


def padded(rows: Sequence[tuple[list[int], int]], pad: int) -> tuple[Tensor, Tensor]:
    """Token ids padded on the right, where causal attention needs no mask, and labels: the answer only. Each [B, T]."""
    width = max(len(ids) for ids, _ in rows)
    made = [[*ids, *[pad] * (width - len(ids))] for ids, _ in rows]
    labels = [[IGNORED] * asked + ids[asked:] + [IGNORED] * (width - len(ids)) for ids, asked in rows]
    return torch.tensor(made), torch.tensor(labels)


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Loss of each next token, 0 where it is not scored: [B, T, V] and [B, T] → [B, T-1]."""
    return cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], ignore_index=IGNORED, reduction="none")


def check_marks(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Refuse a vocabulary that has nothing to mark the ends of question and answer with."""
    if tokenizer.mask_token_id is None or tokenizer.pad_token_id is None:
        lacking = "mask" if tokenizer.mask_token_id is None else "padding"
        raise HftuneError(
            f"{name} has another vocabulary than this task needs: its tokenizer has no {lacking} token",
            hint="take a run of `hftune pretrain`, whose tokenizer has ⁇, or start fresh with --model scratch:mingpt",
        )


def block_of(model: PreTrainedModel) -> int:
    """Tokens of the longest sequence that the model takes."""
    return max_positions(model.config) or 2**31


def too_long(question: str, tokens: int, block: int, where: str = "") -> HftuneError:
    """The error for a question that leaves no room for an answer."""
    return HftuneError(
        f"{where + ': the' if where else 'a'} question has {tokens} tokens with its mark, and the model's block of "
        f"{block} leaves no room for an answer: {question[:60]!r}…",
        hint="shorten the question, or take a model with a larger block",
    )


def _batches(lengths: Sequence[int], size: int, longest: int, block: int) -> Iterator[list[int]]:
    """Row numbers from long to short; where the block cuts answers off, only rows of one length go together.

    Padding counts against the block, so that a row's answer could otherwise depend on its neighbours.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        tight = bool(batch) and lengths[batch[0]] + longest > block and lengths[index] != lengths[batch[0]]
        if len(batch) == size or tight:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
