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
    max_position_embeddings: int
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int | None = None
    """Four times hidden_size by default."""

    def build_config(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
        """The architecture with this tokenizer's vocabulary and padding."""
        return self.config(
            vocab_size=len(tokenizer),
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.cls_token_id,
            eos_token_id=tokenizer.sep_token_id,
            max_position_embeddings=self.max_position_embeddings,
            num_hidden_layers=self.num_hidden_layers,
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            intermediate_size=self.intermediate_size or 4 * self.hidden_size,
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

    num_hidden_layers: int = 4
    num_attention_heads: int = 8
    hidden_size: int = 256
    intermediate_size: int | None = None
    block_size: int = 128
    attention: str = "vanilla"
    tokenizer_type: str = "char"
    """char, or bpe: tokens that are trained on the text."""

    def build_config(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
        """The architecture with this tokenizer's vocabulary; generation ends where training sequences do."""
        ends = [token for token in (tokenizer.mask_token_id, tokenizer.eos_token_id) if token is not None]
        try:
            return MinGPTConfig(
                vocab_size=len(tokenizer),
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=ends[0] if len(ends) == 1 else ends or None,
                block_size=self.block_size,
                hidden_size=self.hidden_size,
                num_hidden_layers=self.num_hidden_layers,
                num_attention_heads=self.num_attention_heads,
                intermediate_size=self.intermediate_size,
                attention=self.attention,
            )
        except ValueError as error:
            reason = (
                str(error)
                .replace("hidden_size", "model.hidden_size")
                .replace("num_attention_heads", "model.num_attention_heads")
            )
            raise HftuneError(
                f"no minGPT has this shape: {reason}",
                hint="change model.hidden_size, model.num_attention_heads or model.block_size",
            ) from error

    def train_tokenizer(self, texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerBase:
        """One token a character of the texts, so that the size is theirs; or learned pieces, as many as asked for."""
        if self.tokenizer_type == "bpe":
            return build_piece_tokenizer(texts, vocab_size, block_size=self.block_size)
        return build_char_tokenizer([TYPEABLE, *texts], block_size=self.block_size)


@dataclass(frozen=True)
class GPT2Preset:
    """How a fresh GPT-2 and its vocabulary of byte pairs are made."""

    causal: ClassVar[bool] = True

    num_hidden_layers: int
    num_attention_heads: int
    hidden_size: int
    intermediate_size: int | None = None
    max_position_embeddings: int = 128

    def build_config(self, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
        """The architecture with this tokenizer's vocabulary."""
        return GPT2Config(
            vocab_size=len(tokenizer),
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            n_positions=self.max_position_embeddings,
            n_embd=self.hidden_size,
            n_layer=self.num_hidden_layers,
            n_head=self.num_attention_heads,
            n_inner=self.intermediate_size,
            # Drawing masks on a CPU costs as much as the work they guard; model.dropout asks for them.
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )

    def train_tokenizer(self, texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerBase:
        """Byte-level BPE, as GPT-2 has."""
        return byte_level(lambda: texts, Learning(vocab_size))


PRESETS: dict[str, Preset | MinGPTPreset | GPT2Preset] = {
    "bert-tiny": Preset(BertConfig, BertTokenizer, 512, num_hidden_layers=2, hidden_size=128, num_attention_heads=2),
    "tinybert": Preset(
        BertConfig,
        BertTokenizer,
        512,
        num_hidden_layers=4,
        hidden_size=312,
        num_attention_heads=12,
        intermediate_size=1200,
    ),
    "roberta-tiny": Preset(
        RobertaConfig,
        _roberta_tokenizer,
        512 + ROBERTA_OFFSET,
        num_hidden_layers=2,
        hidden_size=128,
        num_attention_heads=2,
    ),
    "mingpt": MinGPTPreset(),
    "mingpt-tiny": MinGPTPreset(num_hidden_layers=2, num_attention_heads=4, hidden_size=64),
    "gpt2-tiny": GPT2Preset(num_hidden_layers=2, num_attention_heads=2, hidden_size=128),
}


def preset(section: ModelSection) -> Preset | MinGPTPreset | GPT2Preset:
    """The preset of a ``scratch:<preset>`` model, in the shape that is asked for."""
    key = section.model_name_or_path.removeprefix(SCRATCH)
    if key not in PRESETS:
        raise HftuneError(
            f"no scratch model {key!r}: there are {', '.join(PRESETS)}",
            hint=did_you_mean(key, PRESETS) or f"use --model {SCRATCH}{next(iter(PRESETS))}",
        )
    found = PRESETS[key]
    changes = dict(section.shape)
    if isinstance(found, MinGPTPreset) and section.tokenizer_type is not None:
        changes["tokenizer_type"] = section.tokenizer_type
    if "hidden_size" in changes:
        changes = {"intermediate_size": None, **changes}
    return replace(found, **changes)


def refuse_other_head(section: ModelSection, *, causal: bool) -> None:
    """A fresh GPT can't classify yet, and a fresh encoder, which sees the whole text, can't predict what comes next."""
    if not section.from_scratch or preset(section).causal == causal:
        return
    fitting = [name for name, known in PRESETS.items() if known.causal == causal]
    needed = "a model that predicts the next token" if causal else "an encoder"
    raise HftuneError(
        f"this task needs {needed}; {section.model_name_or_path} is none",
        hint=f"use --model {SCRATCH}{' or '.join(fitting)}",
    )
