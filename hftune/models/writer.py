"""A causal language model that goes on from prompts: greedy or drawn, in batches, with a cache.

``hftune generate`` and the samples of ``hftune.tasks.causal_lm`` come from here. Draws depend on the seed, the prompt's
place and the sample's number alone: neither on the batch nor on torch's random state, which stays as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation import TopKLogitsWarper, TopPLogitsWarper

from hftune.errors import HftuneError
from hftune.models.positions import max_positions

Told = Callable[[int, list[int]], None]
"""Is told of each new token: number of the row, and all its new tokens so far."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen, and how long it goes on."""

    max_new_tokens: int | None = None
    """At most so many; 100, or as many as the context has room for, where not given."""
    temperature: float | None = None
    """Logits are divided by it before a token is drawn; None, with no top_k and top_p, takes the likeliest token."""
    top_k: int | None = None
    """Draw among the k likeliest."""
    top_p: float | None = None
    """Draw among the likeliest that together have this probability."""
    repetition_penalty: float = 1.0
    """Makes tokens that have occurred less likely, where above 1."""
    seed: int = 0
    sliding_window: bool = False
    """Go on with the latter half of the context when it is full; prompts that are too long begin so."""

    @property
    def greedy(self) -> bool:
        """Whether nothing is drawn."""
        return self.temperature is None and self.top_k is None and self.top_p is None

    def check(self) -> None:
        """Refuse numbers that have no meaning."""
        if self.temperature is not None and not self.temperature > 0:
            raise HftuneError(
                f"temperature must be above 0, got {self.temperature:g}",
                hint="leave --temperature out to take the likeliest token each time",
            )
        if self.top_k is not None and self.top_k < 1:
            raise HftuneError(f"top-k must be at least 1, got {self.top_k}", hint="leave --top-k out to draw among all")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise HftuneError(f"top-p must be above 0 and at most 1, got {self.top_p:g}", hint="use --top-p 0.9")
        if not self.repetition_penalty > 0:
            raise HftuneError(
                f"the repetition penalty must be above 0, got {self.repetition_penalty:g}",
                hint="1 changes nothing; 1.1 to 1.3 is common",
            )
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise HftuneError(f"asked for {self.max_new_tokens} new tokens", hint="ask for 1 or more")


@dataclass(frozen=True)
class Continuation:
    """What was written after a prompt."""

    prompt: str
    text: str
    tokens: int
    """New tokens, an end of text among them."""
    log_probability: float
    """Natural logarithm of the probability that the model itself, undistorted by how it was drawn, gives all of it."""
    ended: bool
    """Whether the model came to an end by itself."""


@dataclass
class _Row:
    """A prompt on its way."""

    prompt: str
    ids: list[int]
    random: Random
    written: list[int]
    log_probability: float = 0.0
    ended: bool = False


class Writer:
    """A model and its tokenizer, ready to write."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, document_start: bool = False
    ) -> None:
        """document_start: whether prompts are beginnings of documents, which follow an end of text."""
        self.model, self.tokenizer, self.document_start = model, tokenizer, document_start
        self.block = max_positions(model.config) or 2**31
        plain = model.get_base_model() if isinstance(model, PeftModel) else model
        self._takes_positions = "position_ids" in inspect.signature(plain.forward).parameters
        ends = plain.generation_config.eos_token_id
        ends = tokenizer.eos_token_id if ends is None else ends
        self._ends = {int(one) for one in (ends if isinstance(ends, list) else [ends]) if one is not None}

    def write(
        self,
        prompts: Sequence[str],
        sampling: Sampling,
        *,
        samples: int = 1,
        batch_size: int = 16,
        first: int = 0,
        first_sample: int = 0,
        told: Told | None = None,
    ) -> list[list[Continuation]]:
        """So many continuations of each prompt, in the order given.

        Args:
            prompts: What to go on from.
            sampling: How.
            samples: Continuations of each prompt.
            batch_size: Continuations that are written together.
            first: Number of the first prompt, on which its draws depend.
            first_sample: Number of the first continuation, likewise.
            told: Hears of each new token.

        Raises:
            HftuneError: A prompt does not fit, or can't be told in this vocabulary.
        """
        sampling.check()
        rows: list[_Row] = []
        for number, prompt in enumerate(prompts, start=first):
            ids = self._encoded(prompt, sampling)
            for sample in range(first_sample, first_sample + samples):
                rows.append(_Row(prompt, ids, Random(f"{sampling.seed}:{number}:{sample}"), []))
        was_training = self.model.training
        self.model.eval()
        try:
            for batch in self._batches(rows, sampling, batch_size):
                self._run(batch, rows, sampling, told)
        finally:
            self.model.train(was_training)
        done = [self._continuation(row) for row in rows]
        return [done[start : start + samples] for start in range(0, len(done), samples)]

    def decode(self, ids: list[int]) -> str:
        """Tokens as text, marks left out."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def _encoded(self, prompt: str, sampling: Sampling) -> list[int]:
        try:
            prompt.encode("utf-8")
        except UnicodeEncodeError as error:
            raise HftuneError("the prompt holds bytes that are no UTF-8", hint="write it as UTF-8 text") from error
        tokenizer = self.tokenizer
        start = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        ids = list(tokenizer(prompt)["input_ids"]) if prompt else []
        if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
            raise HftuneError(
                f"the prompt holds characters that the model does not know: {prompt[:60]!r}",
                hint="use characters that occur in its training text",
            )
        if (self.document_start or not ids) and start is not None and ids[:1] != [start]:
            ids = [int(start), *ids]
        if not ids:
            raise HftuneError("the prompt is empty, and the model has no token to begin with", hint="give a prompt")
        room = self.block - len(ids)
        if not sampling.sliding_window and room < (sampling.max_new_tokens or 1):
            raise HftuneError(
                f"a prompt of {len(ids)} tokens and {sampling.max_new_tokens or 1} new ones do not fit into the "
                f"model's context of {self.block}: {prompt[:60]!r}",
                hint="shorten the prompt, ask for fewer with --max-new-tokens, or pass --sliding-window",
            )
        return ids

    def _limit(self, rows: Sequence[_Row], sampling: Sampling) -> int:
        wanted = 100 if sampling.max_new_tokens is None else sampling.max_new_tokens
        return wanted if sampling.sliding_window else min(wanted, self.block - max(len(row.ids) for row in rows))

    def _batches(self, rows: list[_Row], sampling: Sampling, size: int) -> Iterator[list[int]]:
        """Row numbers from long to short; where the context is tight, padding must not take any of it."""
        batch: list[int] = []
        for index in sorted(range(len(rows)), key=lambda index: -len(rows[index].ids)):
            first = len(rows[batch[0]].ids) if batch else 0
            tight = first + (sampling.max_new_tokens or 100) > self.block and len(rows[index].ids) != first
            if batch and (len(batch) == size or tight):
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    @torch.inference_mode()
    def _run(self, batch: list[int], rows: list[_Row], sampling: Sampling, told: Told | None) -> None:
        chosen = [rows[index] for index in batch]
        ids, mask = self._padded(chosen)
        seen = torch.zeros(len(chosen), self._vocabulary(), dtype=torch.bool, device=ids.device)
        seen.scatter_(1, ids, mask.bool())
        cache, new = None, ids
        for _ in range(self._limit(chosen, sampling)):
            if ids.shape[1] > self.block:  # only with a sliding window
                half = -(-self.block // 2)
                ids, mask, cache = ids[:, -half:], mask[:, -half:], None
                new = ids
            inputs = {"input_ids": new, "attention_mask": mask, "past_key_values": cache, "use_cache": True}
            if self._takes_positions:
                inputs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)[:, -new.shape[1] :]
            outputs = self.model(**inputs)
            cache = outputs.past_key_values
            token = self._next(outputs.logits[:, -1].float(), seen, chosen, sampling)  # [B]
            for place, (row, number) in enumerate(zip(chosen, token.tolist(), strict=True)):
                if row.ended:
                    continue
                row.written.append(number)
                row.ended = number in self._ends
                if told is not None:
                    told(batch[place], row.written)
            if all(row.ended for row in chosen):
                break
            seen.scatter_(1, token[:, None], True)
            new = token[:, None]
            ids = torch.cat([ids, new], dim=1)
            mask = torch.cat([mask, mask.new_ones(len(chosen), 1)], dim=1)

    def _next(self, logits: Tensor, seen: Tensor, rows: list[_Row], sampling: Sampling) -> Tensor:
        """The next token of each row: [B, V] → [B]. Notes what the model itself thinks of it."""
        plain = logits.log_softmax(-1)
        scores = logits.clone()
        scores[:, len(self.tokenizer) :] = -torch.inf  # rows of the embedding that stand for no token
        if sampling.repetition_penalty != 1.0:
            penalty = sampling.repetition_penalty
            scores = torch.where(seen, torch.where(scores < 0, scores * penalty, scores / penalty), scores)
        if sampling.greedy:
            token = scores.argmax(-1)
        else:
            scores = scores / (sampling.temperature or 1.0)
            if sampling.top_k is not None:
                scores = TopKLogitsWarper(sampling.top_k)(None, scores)
            if sampling.top_p is not None and sampling.top_p < 1:
                scores = TopPLogitsWarper(sampling.top_p)(None, scores)
            token = self._drawn(scores.double().softmax(-1), rows)
        for row, score in zip(rows, plain.gather(1, token[:, None])[:, 0].tolist(), strict=True):
            row.log_probability += 0.0 if row.ended else score
        return token

    @staticmethod
    def _drawn(shares: Tensor, rows: list[_Row]) -> Tensor:
        draws = shares.new_tensor([row.random.random() for row in rows])[:, None]
        heaped = shares.cumsum(-1)
        token = torch.searchsorted(heaped, draws * heaped[:, -1:], right=True)[:, 0]
        return token.clamp(max=shares.shape[1] - 1)

    def _padded(self, rows: list[_Row]) -> tuple[Tensor, Tensor]:
        """Token ids and mask, padded on the left, each [B, T]."""
        width = max(len(row.ids) for row in rows)
        fill = self.tokenizer.pad_token_id or 0
        ids = [[fill] * (width - len(row.ids)) + row.ids for row in rows]
        mask = [[0] * (width - len(row.ids)) + [1] * len(row.ids) for row in rows]
        device = self.model.device
        return torch.tensor(ids, device=device), torch.tensor(mask, device=device)

    def _vocabulary(self) -> int:
        return int(self.model.config.get_text_config().vocab_size)

    def _continuation(self, row: _Row) -> Continuation:
        text = self.decode([one for one in row.written if one not in self._ends])
        return Continuation(row.prompt, text, len(row.written), row.log_probability, row.ended)
