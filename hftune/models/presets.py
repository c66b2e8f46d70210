"""``scratch:<preset>``: well-known shapes with fresh weights, and a tokenizer trained on the text at hand.

A machine with no network can run everything with these. Used by ``hftune.models.load``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from transformers import (
    BertConfig,
    BertTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    RobertaConfig,
    RobertaTokenizer,
)

from hftune.config.model import SCRATCH
from hftune.errors import HftuneError
from hftune.suggest import did_you_mean

# RoBERTa numbers positions from padding_idx + 1, so two of them are never used.
ROBERTA_OFFSET = 2


@dataclass(frozen=True)
class Preset:
    """How a scratch model and its tokenizer are made."""

    config: Callable[..., PreTrainedConfig]
    tokenizer: Callable[[], PreTrainedTokenizerBase]
    positions: int
    layers: int
    width: int
    heads: int
    feed_forward: int

    def build_config(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
        """The architecture with this tokenizer's vocabulary and padding."""
        return self.config(
            vocab_size=len(tokenizer),
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.cls_token_id,
            eos_token_id=tokenizer.sep_token_id,
            max_position_embeddings=self.positions,
            num_hidden_layers=self.layers,
            hidden_size=self.width,
            num_attention_heads=self.heads,
            intermediate_size=self.feed_forward,
        )

    def train_tokenizer(self, texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerBase:
        """A tokenizer of this architecture's kind, learned from the texts: the same texts give the same ids."""
        texts, base = list(texts), self.tokenizer()
        learned = base.train_new_from_iterator(texts, vocab_size=vocab_size, show_progress=False)
        return _in_order(learned, base, texts, vocab_size) if self.tokenizer is BertTokenizer else learned


def _in_order(
    learned: PreTrainedTokenizerBase, base: PreTrainedTokenizerBase, texts: list[str], vocab_size: int
) -> PreTrainedTokenizerBase:
    """A WordPiece tokenizer learned once more, with the single characters inside words numbered in their order.

    The tokenizers library numbers them as they come out of a hash table, differently each time, and breaks ties between
    pieces by these numbers. A resumed run would find the weights of its checkpoint under other ids.
    """
    inside = sorted(piece for piece in learned.get_vocab() if piece.startswith("##") and len(piece) == 3)
    again = base.train_new_from_iterator(texts, vocab_size=vocab_size, show_progress=False, new_special_tokens=inside)
    return BertTokenizer(vocab=again.get_vocab())


def _roberta_tokenizer() -> PreTrainedTokenizerBase:
    # pad_token_id must be 1: RoBERTa's position numbers start right after it.
    return RobertaTokenizer(vocab={"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4})


PRESETS = {
    "bert-tiny": Preset(BertConfig, BertTokenizer, 512, layers=2, width=128, heads=2, feed_forward=512),
    "tinybert": Preset(BertConfig, BertTokenizer, 512, layers=4, width=312, heads=12, feed_forward=1200),
    "roberta-tiny": Preset(
        RobertaConfig,
        _roberta_tokenizer,
        512 + ROBERTA_OFFSET,
        layers=2,
        width=128,
        heads=2,
        feed_forward=512,
    ),
}


def preset(name: str) -> Preset:
    """The preset of a ``scratch:<preset>`` model name."""
    key = name.removeprefix(SCRATCH)
    if key not in PRESETS:
        raise HftuneError(
            f"no scratch model {key!r}: there are {', '.join(PRESETS)}",
            hint=did_you_mean(key, PRESETS) or f"use --model {SCRATCH}{next(iter(PRESETS))}",
        )
    return PRESETS[key]
