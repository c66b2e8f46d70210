"""``scratch:<preset>``: well-known shapes with fresh weights, and a tokenizer trained on the text at hand.

A machine with no network can run everything with these. Used by ``hftune.models.load``.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from transformers import (
    BertConfig,
    BertTokenizer,
    GPT2Config,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    RobertaConfig,
    RobertaTokenizer,
)

from hftune.config.model import SCRATCH, ModelSection
from hftune.errors import HftuneError
from hftune.models.chars import build_char_tokenizer
from hftune.models.learned import learned
from hftune.models.mingpt import MinGPTConfig
from hftune.models.pieces import build_piece_tokenizer
from hftune.models.vocabulary import Learning, byte_level, in_bounds
from hftune.suggest import did_you_mean

# RoBERTa numbers positions from padding_idx + 1, so two of them are never used.
ROBERTA_OFFSET = 2
TYPEABLE = string.ascii_letters + string.digits + string.punctuation + " "
"""Always in a vocabulary of characters: a corpus may lack the question mark that a later question ends in."""


@dataclass(frozen=True)
class Preset:
    """How a fresh encoder and its tokenizer are made."""

    causal: ClassVar[bool] = False
    """Whether it predicts the next token; encoders read both ways."""

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
        texts, base = [in_bounds(text) for text in texts], self.tokenizer()
        if self.tokenizer is BertTokenizer:
            return _of_pieces(learned(texts, vocab_size, lambda: _pieces(base, texts, vocab_size)))
        return base.train_new_from_iterator(texts, vocab_size=vocab_size, show_progress=False)


def _of_pieces(vocabulary: dict[str, int]) -> PreTrainedTokenizerBase:
    return BertTokenizer(vocab=vocabulary)


def _pieces(base: PreTrainedTokenizerBase, texts: list[str], vocab_size: int) -> dict[str, int]:
    """A WordPiece vocabulary, learned twice: the second time with the characters inside words numbered in their order.

    The tokenizers library numbers them as they come out of a hash table, differently each time, and breaks ties between
    pieces by these numbers. A resumed run would find the weights of its checkpoint under other ids.
    """
    first = base.train_new_from_iterator(texts, vocab_size=vocab_size, show_progress=False)
    inside = sorted(piece for piece in first.get_vocab() if piece.startswith("##") and len(piece) == 3)
    again = base.train_new_from_iterator(texts, vocab_size=vocab_size, show_progress=False, new_special_tokens=inside)
    found: dict[str, int] = again.get_vocab()
    return found


def _roberta_tokenizer() -> PreTrainedTokenizerBase:
    # pad_token_id must be 1: RoBERTa's position numbers start right after it.
    return RobertaTokenizer(vocab={"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 4})


@dataclass(frozen=True)
class MinGPTPreset:
    """How a fresh minGPT and its vocabulary are made."""

    causal: ClassVar[bool] = True

    layers: int = 4
    heads: int = 8
    width: int = 256
    block: int = 128
    attention: str = "vanilla"
    pieces: bool = False
    """Whether it reads pieces of words that are learned from the text, and not its characters."""

    def build_config(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
        """The architecture with this tokenizer's vocabulary; generation ends where training sequences do."""
        ends = [token for token in (tokenizer.mask_token_id, tokenizer.eos_token_id) if token is not None]
        try:
            return MinGPTConfig(
                vocab_size=len(tokenizer),
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=ends[0] if len(ends) == 1 else ends or None,
                block_size=self.block,
                hidden_size=self.width,
                num_hidden_layers=self.layers,
                num_attention_heads=self.heads,
                attention=self.attention,
            )
        except ValueError as error:
            reason = str(error).replace("hidden_size", "model.width").replace("num_attention_heads", "model.heads")
            raise HftuneError(
                f"no minGPT has this shape: {reason}", hint="change model.width, model.heads or model.block"
            ) from error

    def train_tokenizer(self, texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerBase:
        """One token a character of the texts, so that the size is theirs; or learned pieces, as many as asked for."""
        if self.pieces:
            return build_piece_tokenizer(texts, vocab_size, block_size=self.block)
        return build_char_tokenizer([TYPEABLE, *texts], block_size=self.block)


@dataclass(frozen=True)
class GPT2Preset:
    """How a fresh GPT-2 and its vocabulary of byte pairs are made."""

    causal: ClassVar[bool] = True

    layers: int
    heads: int
    width: int
    block: int = 128

    def build_config(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
        """The architecture with this tokenizer's vocabulary."""
        return GPT2Config(
            vocab_size=len(tokenizer),
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            n_positions=self.block,
            n_embd=self.width,
            n_layer=self.layers,
            n_head=self.heads,
            # Drawing masks on a CPU costs as much as the work they guard; model.dropout asks for them.
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )

    def train_tokenizer(self, texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerBase:
        """Byte-level BPE, as GPT-2 has."""
        return byte_level(lambda: texts, Learning(vocab_size))


PRESETS: dict[str, Preset | MinGPTPreset | GPT2Preset] = {
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
    "mingpt": MinGPTPreset(),
    "mingpt-tiny": MinGPTPreset(layers=2, heads=4, width=64),
    "gpt2-tiny": GPT2Preset(layers=2, heads=2, width=128),
}


def preset(section: ModelSection) -> Preset | MinGPTPreset | GPT2Preset:
    """The preset of a ``scratch:<preset>`` model, in the shape that is asked for."""
    key = section.name.removeprefix(SCRATCH)
    if key not in PRESETS:
        raise HftuneError(
            f"no scratch model {key!r}: there are {', '.join(PRESETS)}",
            hint=did_you_mean(key, PRESETS) or f"use --model {SCRATCH}{next(iter(PRESETS))}",
        )
    found = PRESETS[key]
    if not isinstance(found, MinGPTPreset):
        return found
    return replace(found, **section.shape, pieces=section.reads_pieces)


def refuse_other_head(section: ModelSection, *, causal: bool) -> None:
    """A fresh GPT can't classify yet, and a fresh encoder, which sees the whole text, can't predict what comes next."""
    if not section.from_scratch or preset(section).causal == causal:
        return
    fitting = [name for name, known in PRESETS.items() if known.causal == causal]
    needed = "a model that predicts the next token" if causal else "an encoder"
    raise HftuneError(
        f"this task needs {needed}; {section.name} is none", hint=f"use --model {SCRATCH}{' or '.join(fitting)}"
    )
