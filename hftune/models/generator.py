"""Text generation with a causal language model: greedy or sampled, in batches, with a cache.

Samples depend on the seed, the index of the prompt and the index of the sample alone: neither on the batch nor on
torch's random state, which does not change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import torch
from peft import PeftModel
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation import TopKLogitsWarper, TopPLogitsWarper

from hftune.errors import HftuneError
from hftune.models.decoding import Decoding, Generated, context_of, decode
from hftune.models.tokenizer_stats import unknown_token

DEFAULT_NEW_TOKENS = 100
OnToken = Callable[[list[int]], None]
"""Called with each new token: all new tokens of its sequence so far."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen, and how many are generated."""

    max_new_tokens: int | None = None
    """100 by default, or as many as the context has room for."""
    temperature: float | None = None
    """Divides the logits before a token is sampled; None, without top_k and top_p, is greedy decoding."""
    top_k: int | None = None
    """Sample among the k most likely tokens."""
    top_p: float | None = None
    """Sample among the most likely tokens that together have this probability."""
    repetition_penalty: float = 1.0
    """Above 1, tokens that have occurred become less likely."""
    seed: int = 0
    sliding_window: bool = False
    """Continue with the latter half of the context when it is full; prompts that are too long start with it."""

    @property
    def greedy(self) -> bool:
        """Whether nothing is sampled."""
        return self.temperature is None and self.top_k is None and self.top_p is None

    def check(self) -> None:
        """Refuse numbers out of range."""
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise HftuneError(
                f"temperature must be a number above 0, got {self.temperature:g}",
                hint="leave --temperature out for greedy decoding",
            )
        if self.top_k is not None and self.top_k < 1:
            raise HftuneError(f"top-k must be at least 1, got {self.top_k}", hint="leave --top-k out")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise HftuneError(f"top-p must be above 0 and at most 1, got {self.top_p:g}", hint="use --top-p 0.9")
        if not 0 < self.repetition_penalty < math.inf:
            raise HftuneError(
                f"the repetition penalty must be a number above 0, got {self.repetition_penalty:g}",
                hint="1 changes nothing; 1.1 to 1.3 is common",
            )
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            raise HftuneError(f"max-new-tokens must be at least 1, got {self.max_new_tokens}", hint="use 1 or more")


@dataclass(frozen=True)
class Continuation:
    """The text that was generated after a prompt."""

    prompt: str
    text: str
    tokens: int
    """Number of new tokens, including the end token."""
    log_probability: float
    """Natural logarithm of the probability of the text under the model itself, without temperature, top_k or top_p."""
    ended: bool
    """Whether the model ended the text, rather than the token limit."""


@dataclass
class _Sample(Generated):
    """A sequence with its own random numbers."""

    prompt: str = ""
    random: Random = field(default_factory=Random)


class TextGenerator:
    """A causal language model and its tokenizer."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, document_start: bool | None = None
    ) -> None:
        """document_start: see ``encode_prompt``."""
        self.model, self.tokenizer, self.document_start = model, tokenizer, document_start
        self.block = context_of(model)
        plain = model.get_base_model() if isinstance(model, PeftModel) else model
        ends = plain.generation_config.eos_token_id
        ends = tokenizer.eos_token_id if ends is None else ends
        self._ends = frozenset(int(one) for one in (ends if isinstance(ends, list) else [ends]) if one is not None)

    def generate(
        self,
        prompts: Sequence[str],
        sampling: Sampling,
        *,
        samples: int = 1,
        batch_size: int = 16,
        first: int = 0,
        first_sample: int = 0,
        on_token: OnToken = lambda ids: None,
    ) -> list[list[Continuation]]:
        """Generate continuations of each prompt, in the order given.

        Args:
            prompts: The prompts.
            sampling: How the next token is chosen.
            samples: Number of continuations of each prompt.
            batch_size: Number of continuations that are generated together.
            first: Index of the first prompt, on which its samples depend.
            first_sample: Index of the first continuation, on which it depends.
            on_token: Called with each new token.

        Raises:
            HftuneError: A prompt does not fit, or has characters that the vocabulary lacks.
        """
        sampling.check()
        rows: list[_Sample] = []
        for number, prompt in enumerate(prompts, start=first):
            ids = self.encode(prompt)
            self._check_length(prompt, ids, sampling)
            for sample in range(first_sample, first_sample + samples):
                rows.append(_Sample(ids, prompt=prompt, random=Random(f"{sampling.seed}:{number}:{sample}")))
        how = Decoding[_Sample](
            max_new_tokens=DEFAULT_NEW_TOKENS if sampling.max_new_tokens is None else sampling.max_new_tokens,
            eos_token_ids=self._ends,
            choose=lambda logits, going: self._next(logits, going, sampling),
            sliding_window=sampling.sliding_window,
            on_token=lambda row: on_token(row.new_ids),
        )
        decode(self.model, rows, how, batch_size=batch_size)
        done = [self._continuation(row) for row in rows]
        return [done[start : start + samples] for start in range(0, len(done), samples)]

    def encode(self, prompt: str) -> list[int]:
        """The tokens of a prompt."""
        return encode_prompt(self.tokenizer, prompt, self.document_start)

    def decode(self, ids: Sequence[int], after: Sequence[int] = ()) -> str:
        """Text of tokens without special tokens, as it reads after other tokens: there may be a space between them."""
        before, text = (str(self.tokenizer.decode([*part], skip_special_tokens=True)) for part in (after, ids))
        whole = str(self.tokenizer.decode([*after, *ids], skip_special_tokens=True))
        return whole.removeprefix(before) if whole.startswith(before) else text

    def _check_length(self, prompt: str, ids: Sequence[int], sampling: Sampling) -> None:
        new = sampling.max_new_tokens or 1
        if not sampling.sliding_window and len(ids) + new > self.block:
            raise HftuneError(
                f"a prompt of {len(ids)} tokens and {new} new ones do not fit into the model's context of "
                f"{self.block}: {prompt[:60]!r}",
                hint="shorten the prompt, use a smaller --max-new-tokens, or pass --sliding-window",
            )

    def _next(self, logits: Tensor, rows: list[_Sample], sampling: Sampling) -> Tensor:
        """The next token of each sequence: [B, V] → [B]."""
        scores = logits.double()  # [B, V]
        scores[:, len(self.tokenizer) :] = -torch.inf  # padding rows of the embedding matrix are not tokens
        if sampling.repetition_penalty != 1.0:
            for score, row in zip(scores, rows, strict=True):
                seen = torch.tensor(sorted({*row.ids, *row.new_ids}), device=score.device)
                before, penalty = score[seen], sampling.repetition_penalty
                score[seen] = torch.where(before < 0, before * penalty, before / penalty)
        if sampling.greedy:
            return scores.argmax(-1)
        # The largest becomes 0, so that dividing by a low temperature does not overflow.
        scores = (scores - scores.amax(-1, keepdim=True)) / (sampling.temperature or 1.0)
        if sampling.top_k is not None:
            scores = TopKLogitsWarper(sampling.top_k)(None, scores)
        if sampling.top_p is not None and sampling.top_p < 1:
            scores = TopPLogitsWarper(sampling.top_p)(None, scores)
        # Inverse transform sampling with one number per sequence, so that the batch has no influence.
        probabilities = scores.softmax(-1)  # [B, V]
        drawn = probabilities.new_tensor([row.random.random() for row in rows])[:, None]  # [B, 1]
        cumulative = probabilities.cumsum(-1)  # [B, V]
        token = torch.searchsorted(cumulative, drawn * cumulative[:, -1:], right=True)[:, 0]  # [B]
        return token.clamp(max=probabilities.shape[1] - 1)

    def _continuation(self, row: _Sample) -> Continuation:
        text = self.decode([one for one in row.new_ids if one not in self._ends], after=row.ids)
        return Continuation(row.prompt, text, len(row.new_ids), row.log_probability, row.ended)


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str, document_start: bool | None) -> list[int]:
    """The tokens of a prompt.

    Args:
        tokenizer: The model's.
        prompt: The text.
        document_start: Whether prompts start a document, which follows an end-of-text token; None for a model that
            hftune did not train, whose tokenizer decides what comes before a text.

    Raises:
        HftuneError: It is not valid text, has characters that the vocabulary lacks, or is empty and there is no token
            to start with.
    """
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise HftuneError("the prompt is not valid UTF-8", hint="write it as UTF-8 text") from error
    ids = list(tokenizer(prompt, add_special_tokens=False)["input_ids"]) if prompt else []
    if unknown_token(tokenizer) in ids:
        raise HftuneError(
            f"the prompt has characters that the model does not know: {prompt[:60]!r}",
            hint="use characters that occur in its training text",
        )
    start = tokenizer.eos_token_id
    if document_start is None:
        start = start if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        last, ids = ids[-1:], list(tokenizer(prompt)["input_ids"]) if prompt else []
        if ids[-1:] != last:
            ids.pop()  # an end token that the tokenizer adds to every text
    if (document_start or not ids) and start is not None and ids[:1] != [start]:
        ids = [int(start), *ids]
    if not ids:
        raise HftuneError("the prompt is empty, and the model has no token to start with", hint="give a prompt")
    return ids
