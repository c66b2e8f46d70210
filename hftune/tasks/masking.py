"""Masking for a masked language model, as a pure function of seed, epoch and example. Used by tasks mlm and joint.

Of the tokens that are chosen (15 % where not said otherwise) 80 % become the mask token, 10 % another token at random
and 10 % stay. Special tokens are never chosen, and padding comes later. No generator is shared: a resumed run, another
process or a worker asks the same and gets the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from transformers import PreTrainedTokenizerBase

from hftune.errors import HftuneError
from hftune.models.joint import IGNORED

MASKED_SHARE, RANDOM_SHARE = 0.8, 0.1
STREAM = 0x6D6C6D
"""Tells these draws from others with the same seed and epoch."""


@dataclass(frozen=True)
class Masking:
    """How token ids are masked; made by ``masking_for``."""

    seed: int
    probability: float
    mask_id: int
    special: frozenset[int]
    ordinary: np.ndarray = field(compare=False)
    """Every token that may stand in for another."""

    def __call__(
        self, ids: Sequence[int], epoch: int, example: int, words: Sequence[int] | None = None
    ) -> tuple[list[int], list[int]]:
        """Mask one example.

        Args:
            ids: Its tokens.
            epoch: How often the example was seen before.
            example: Its number.
            words: For whole words: the number of the word that each token is of, -1 for none.

        Returns:
            The tokens to show, and the true ones where one was chosen, else -100.
        """
        draw = np.random.default_rng([self.seed, STREAM, epoch, example])
        tokens = np.asarray(ids, dtype=np.int64)
        may = np.fromiter((token not in self.special for token in ids), dtype=bool, count=len(ids))
        if words is None:
            chosen = draw.random(len(tokens)) < self.probability
        else:
            of = np.asarray(words)
            # One draw a word; a token of no word has one of its own.
            drawn, alone = draw.random(int(of.max(initial=-1)) + 1), draw.random(len(tokens))
            chosen = np.where(of >= 0, drawn[of] if len(drawn) else 1.0, alone) < self.probability
        chosen &= may
        fate = draw.random(len(tokens))
        others = self.ordinary[draw.integers(len(self.ordinary), size=len(tokens))]
        shown = np.where(chosen & (fate < MASKED_SHARE), self.mask_id, tokens)
        at_random = chosen & (fate >= MASKED_SHARE) & (fate < MASKED_SHARE + RANDOM_SHARE)
        shown = np.where(at_random, others, shown)
        return shown.tolist(), np.where(chosen, tokens, IGNORED).tolist()


def masking_for(tokenizer: PreTrainedTokenizerBase, probability: float, seed: int) -> Masking:
    """The masking of a tokenizer's texts.

    Raises:
        HftuneError: The tokenizer has no mask token.
    """
    if tokenizer.mask_token_id is None:
        raise HftuneError(
            f"the tokenizer ({type(tokenizer).__name__}) has no mask token, so no masked language model can be trained",
            hint="take a BERT or RoBERTa model; GPT-like ones predict the next token: hftune pretrain --objective clm",
        )
    special = frozenset(tokenizer.all_special_ids)
    ordinary = np.asarray([number for number in range(len(tokenizer)) if number not in special], dtype=np.int64)
    return Masking(seed, probability, int(tokenizer.mask_token_id), special, ordinary)
