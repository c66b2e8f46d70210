"""A causal language model that goes on from prompts: greedy or drawn, in batches, with a cache.

``hftune generate`` and the samples of ``hftune.tasks.causal_lm`` come from here. Draws depend on the seed, the prompt's
place and the sample's number alone: neither on the batch nor on torch's random state, which stays as it is.
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
from hftune.models.decoding import Decoding, Row, context_of, decode
from hftune.models.vocabulary import unknown_token

USUAL = 100
"""New tokens where nobody says how many."""
Told = Callable[[list[int]], None]
"""Is told of each new token: all new tokens of its row so far."""


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
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise HftuneError(
                f"temperature must be a number above 0, got {self.temperature:g}",
                hint="leave --temperature out to take the likeliest token each time",
            )
        if self.top_k is not None and self.top_k < 1:
            raise HftuneError(f"top-k must be at least 1, got {self.top_k}", hint="leave --top-k out to draw among all")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise HftuneError(f"top-p must be above 0 and at most 1, got {self.top_p:g}", hint="use --top-p 0.9")
        if not 0 < self.repetition_penalty < math.inf:
            raise HftuneError(
                f"the repetition penalty must be a number above 0, got {self.repetition_penalty:g}",
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
class _Drawn(Row):
    """A prompt on its way, with draws of its own."""

    prompt: str = ""
    random: Random = field(default_factory=Random)


class Writer:
    """A model and its tokenizer, ready to write."""

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

    def write(
        self,
        prompts: Sequence[str],
        sampling: Sampling,
        *,
        samples: int = 1,
        batch_size: int = 16,
        first: int = 0,
        first_sample: int = 0,
        told: Told = lambda ids: None,
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
        rows: list[_Drawn] = []
        for number, prompt in enumerate(prompts, start=first):
            ids = self.encode(prompt)
            check_room(prompt, ids, self.block, sampling)
            for sample in range(first_sample, first_sample + samples):
                rows.append(_Drawn(ids, prompt=prompt, random=Random(f"{sampling.seed}:{number}:{sample}")))
        how = Decoding[_Drawn](
            most=USUAL if sampling.max_new_tokens is None else sampling.max_new_tokens,
            ends=self._ends,
            choose=lambda logits, going: self._next(logits, going, sampling),
            slide=sampling.sliding_window,
            told=lambda row: told(row.written),
        )
        decode(self.model, rows, how, batch_size=batch_size)
        done = [self._continuation(row) for row in rows]
        return [done[start : start + samples] for start in range(0, len(done), samples)]

    def encode(self, prompt: str) -> list[int]:
        """The tokens of a prompt; see ``encode_prompt``."""
        return encode_prompt(self.tokenizer, prompt, self.document_start)

    def decode(self, ids: Sequence[int], after: Sequence[int] = ()) -> str:
        """Tokens as text, marks left out; as they read after others, with which there may be a blank between them."""
        before, text = (str(self.tokenizer.decode([*part], skip_special_tokens=True)) for part in (after, ids))
        whole = str(self.tokenizer.decode([*after, *ids], skip_special_tokens=True))
        return whole.removeprefix(before) if whole.startswith(before) else text

    def _next(self, logits: Tensor, rows: list[_Drawn], sampling: Sampling) -> Tensor:
        """The next token of each row: [B, V] → [B]."""
        scores = logits.double()
        scores[:, len(self.tokenizer) :] = -torch.inf  # rows of the embedding that stand for no token
        if sampling.repetition_penalty != 1.0:
            for score, row in zip(scores, rows, strict=True):
                seen = torch.tensor(sorted({*row.ids, *row.written}), device=score.device)
                before = score[seen]
                penalty = sampling.repetition_penalty
                score[seen] = torch.where(before < 0, before * penalty, before / penalty)
        if sampling.greedy:
            return scores.argmax(-1)
        # The greatest becomes 0, so that a low temperature makes no number that is none.
        scores = (scores - scores.amax(-1, keepdim=True)) / (sampling.temperature or 1.0)
        if sampling.top_k is not None:
            scores = TopKLogitsWarper(sampling.top_k)(None, scores)
        if sampling.top_p is not None and sampling.top_p < 1:
            scores = TopPLogitsWarper(sampling.top_p)(None, scores)
        return self._drawn(scores.softmax(-1), rows)

    @staticmethod
    def _drawn(shares: Tensor, rows: list[_Drawn]) -> Tensor:
        draws = shares.new_tensor([row.random.random() for row in rows])[:, None]
        heaped = shares.cumsum(-1)
        token = torch.searchsorted(heaped, draws * heaped[:, -1:], right=True)[:, 0]
        return token.clamp(max=shares.shape[1] - 1)

    def _continuation(self, row: _Drawn) -> Continuation:
        text = self.decode([one for one in row.written if one not in self._ends], after=row.ids)
        return Continuation(row.prompt, text, len(row.written), row.log_probability, row.ended)


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str, document_start: bool | None) -> list[int]:
    """The tokens of a prompt.

    Args:
        tokenizer: The model's.
        prompt: What to go on from.
        document_start: Whether prompts are beginnings of documents, which follow an end of text; None for a model that
            was trained elsewhere, whose tokenizer knows what goes before a text.

    Raises:
        HftuneError: It is no text, can't be told in this vocabulary, or is empty and there is nothing to begin with.
    """
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise HftuneError("the prompt holds bytes that are no UTF-8", hint="write it as UTF-8 text") from error
    ids = list(tokenizer(prompt, add_special_tokens=False)["input_ids"]) if prompt else []
    if unknown_token(tokenizer) in ids:
        raise HftuneError(
            f"the prompt holds characters that the model does not know: {prompt[:60]!r}",
            hint="use characters that occur in its training text",
        )
    start = tokenizer.eos_token_id
    if document_start is None:
        start = start if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        last, ids = ids[-1:], list(tokenizer(prompt)["input_ids"]) if prompt else []
        if ids[-1:] != last:
            ids.pop()  # an end that the tokenizer puts after every text
    if (document_start or not ids) and start is not None and ids[:1] != [start]:
        ids = [int(start), *ids]
    if not ids:
        raise HftuneError("the prompt is empty, and the model has no token to begin with", hint="give a prompt")
    return ids


def check_room(prompt: str, ids: Sequence[int], block: int, sampling: Sampling) -> None:
    """Refuse a prompt that does not fit into the context with what is asked for."""
    new = sampling.max_new_tokens or 1
    if not sampling.sliding_window and len(ids) + new > block:
        raise HftuneError(
            f"a prompt of {len(ids)} tokens and {new} new ones do not fit into the model's context of {block}: "
            f"{prompt[:60]!r}",
            hint="shorten the prompt, ask for fewer with --max-new-tokens, or pass --sliding-window",
        )
