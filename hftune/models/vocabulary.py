"""Tokenizers learned from text: byte-level BPE, WordPiece, Unigram. Called by ``hftune tokenizer train`` and by tasks.

Each is an ordinary fast tokenizer: saved as tokenizer.json, it loads through AutoTokenizer with no code of ours, which
takes ``[MASK]`` in a text for the token, as with any other. In text that is trained on it is characters: ``as_text``.
The same text gives the same ids, in any process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from hftune.errors import HftuneError
from hftune.suggest import did_you_mean

END = "<|endoftext|>"
PAD = "<|pad|>"
INSIDE = "##"
"""What a piece inside a word begins with in WordPiece."""
DIGITS = 6
"""Digits of a Unigram score that are kept: later ones depend on the order of a hash table."""

LONGEST_WORD = 1000
_NO_WORD = re.compile(rf"\S{{{LONGEST_WORD}}}")

STEP = 1e-4
"""How far apart the library puts the scores of characters that are no likely piece."""
SPACE = "▁"
"""What stands for a blank in a Unigram vocabulary, and before every text."""
WORDS = r"▁?[\p{L}\p{M}]+|▁?\p{N}+|▁?[^\s▁\p{L}\p{M}\p{N}]+|▁+(?=▁)|▁|\s+"
"""What a Unigram piece lies within: letters, digits or other signs with the blank before them; blanks; line ends."""


@dataclass(frozen=True)
class Learning:
    """What is learned, and of what size."""

    vocab_size: int
    min_frequency: int = 2
    """Times that a pair, or a piece, must occur."""
    special: tuple[str, ...] = ()
    """Special tokens beside those that the kind has."""


Texts = Callable[[], Iterable[str]]
"""Gives the texts; called again where they must be read twice."""


def in_bounds(text: str) -> str:
    """A text to learn from without words that are no words: the time to learn one grows with its length squared."""
    return text if len(text) <= LONGEST_WORD else _NO_WORD.sub(r"\g<0> ", text)


def train_vocabulary(kind: str, texts: Texts, learning: Learning, *, exact: bool = True) -> PreTrainedTokenizerFast:
    """Learn a tokenizer.

    Args:
        kind: A key of ``KINDS``.
        texts: What to learn from, of any size; read once or twice.
        learning: Size and special tokens.
        exact: Whether a vocabulary that comes out smaller than asked for is an error.

    Raises:
        HftuneError: The size can't be had, or there is no text.
    """
    if kind not in KINDS:
        raise HftuneError(
            f"no tokenizer of the kind {kind!r}: there are {', '.join(KINDS)}",
            hint=did_you_mean(kind, KINDS) or f"use {next(iter(KINDS))}",
        )
    made = KINDS[kind](texts, learning)
    if exact and len(made) < learning.vocab_size:
        raise HftuneError(
            f"the text has only {len(made):,} different tokens to give; a vocabulary of {learning.vocab_size:,} was "
            "asked for",
            hint=f"ask for {len(made)} or fewer, give more text, or lower the minimum frequency "
            f"({learning.min_frequency})",
        )
    return made


def byte_level(texts: Texts, learning: Learning) -> PreTrainedTokenizerFast:
    """Byte-pair encoding of bytes, as GPT-2 has: any text comes back exactly, and nothing is unknown."""
    backend = byte_pairs(texts, learning, _special((END, PAD), learning))
    return _fast(backend, learning, eos_token=END, bos_token=END, pad_token=PAD)


def byte_pairs(
    texts: Texts,
    learning: Learning,
    special: Sequence[str | AddedToken],
    normalizer: normalizers.Normalizer | None = None,
) -> Tokenizer:
    """Learn which bytes stand together; the normalizer goes over every text first."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    least = len(alphabet) + len(special)
    if learning.vocab_size < least:
        raise HftuneError(
            f"a byte-level vocabulary has the 256 bytes and {len(special)} special tokens at least; "
            f"{learning.vocab_size} was asked for",
            hint=f"ask for {least} or more",
        )
    backend = Tokenizer(models.BPE())
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=learning.vocab_size,
        min_frequency=learning.min_frequency,
        special_tokens=list(special),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    _train(backend, trainer, texts)
    return backend


def word_piece(texts: Texts, learning: Learning) -> PreTrainedTokenizerFast:
    """WordPiece as BERT has it, in lower case; spaces and unknown characters are lost."""
    special = _special(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), learning)

    def learned(first: list[str]) -> Tokenizer:
        backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer()
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(
            vocab_size=learning.vocab_size,
            min_frequency=learning.min_frequency,
            special_tokens=[*special, *first],
            show_progress=False,
        )
        _train(backend, trainer, texts)
        return backend

    # The library numbers single characters inside words as they come out of a hash table, and breaks ties between
    # pieces by these numbers. So it learns once to find them, and once more with their numbers given.
    vocabulary = learned([]).get_vocab()
    inside = sorted(piece for piece in vocabulary if piece.startswith(INSIDE) and len(piece) == len(INSIDE) + 1)
    _refuse_small(learning, len(special) + sum(len(piece.removeprefix(INSIDE)) == 1 for piece in vocabulary))
    numbered = learned(inside).get_vocab()
    backend = Tokenizer(models.WordPiece(numbered, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(special)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, numbered[name]) for name in ("[CLS]", "[SEP]")],
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    return _fast(backend, learning, **names, cls_token="[CLS]", sep_token="[SEP]")


def unigram(texts: Texts, learning: Learning) -> PreTrainedTokenizerFast:
    """A Unigram model over text with marked spaces, as T5 has; characters that the text lacks are unknown."""
    special = _special(("<pad>", "</s>", "<unk>"), learning)
    # Asked before: the library would try for ever to get below the number of characters.
    characters = {SPACE}
    for text in texts():
        characters.update(text.replace(" ", ""))
    _refuse_small(learning, len(special) + len(characters))
    backend = _marked_spaces(Tokenizer(models.Unigram()))
    trainer = trainers.UnigramTrainer(
        vocab_size=learning.vocab_size, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    _train(backend, trainer, texts)
    pieces = json.loads(backend.to_str())["model"]["vocab"]
    scores = {piece: round(score, DIGITS) for piece, score in pieces if piece not in special}
    vocabulary = [*((name, 0.0) for name in special), *_settled(scores)]
    settled = _marked_spaces(Tokenizer(models.Unigram(vocabulary, unk_id=special.index("<unk>"))))
    settled.add_special_tokens(special)
    return _fast(settled, learning, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


KINDS: dict[str, Callable[[Texts, Learning], PreTrainedTokenizerFast]] = {
    "bpe": byte_level,
    "wordpiece": word_piece,
    "unigram": unigram,
}
"""How a tokenizer of each kind is learned."""


def end_of_text(tokenizer: PreTrainedTokenizerBase, name: str) -> int:
    """The token that stands between documents.

    Raises:
        HftuneError: The vocabulary has none.
    """
    if tokenizer.eos_token_id is None:
        raise HftuneError(
            f"the tokenizer of {name} has no end-of-text token to set documents apart",
            hint="learn one with `hftune tokenizer train --kind bpe`, and name it with --tokenizer FOLDER",
        )
    return int(tokenizer.eos_token_id)


def unknown_token(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The token that stands for what the vocabulary can't say; GPT-2's is its end of text, which says nothing."""
    known = tokenizer.unk_token_id
    return None if known is None or known == tokenizer.eos_token_id else int(known)


def as_text(tokenizer: PreTrainedTokenizerBase) -> dict[str, bool]:
    """How a tokenizer is called on text that is trained on: what looks like a special token there is its characters."""
    return {"split_special_tokens": True} if tokenizer.is_fast else {}


def _special(own: Sequence[str], learning: Learning) -> list[str]:
    doubled = [token for token in learning.special if not token or token in own]
    if doubled or len(set(learning.special)) < len(learning.special):
        raise HftuneError(
            f"special tokens must be different from each other and from {', '.join(own)}, and not empty",
            hint="leave out what is there already",
        )
    return [*own, *learning.special]


def _train(backend: Tokenizer, trainer: Any, texts: Texts) -> None:
    seen = _Seen(texts())
    backend.train_from_iterator(seen, trainer)
    if not seen.any:
        raise HftuneError(
            "there is no text to learn a vocabulary from", hint="check that the file is the one you meant"
        )


class _Seen:
    """Texts, and whether there was anything in them."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = texts
        self.any = False

    def __iter__(self) -> Iterator[str]:
        for text in self.texts:
            self.any = self.any or bool(text.strip())
            yield in_bounds(text)


def _refuse_small(learning: Learning, least: int) -> None:
    """Characters without a token of their own would be unknown for want of room alone."""
    if learning.vocab_size < least:
        raise HftuneError(
            f"the text has {least:,} different characters and special tokens; a vocabulary of "
            f"{learning.vocab_size:,} was asked for",
            hint=f"ask for {least} or more, or use --kind bpe, which has 256 bytes in place of characters",
        )


def _settled(scores: dict[str, float]) -> list[tuple[str, float]]:
    """Unigram pieces from likely to unlikely, the same each time.

    Characters that are no likely piece get scores below all others, each 0.0001 lower than the last, in the order of a
    hash table; here they get the same scores in the order of the alphabet.
    """
    single = sorted((score, piece) for piece, score in scores.items() if len(piece) == 1)
    rare = single[:1]
    for score, piece in single[1:]:
        if score - rare[-1][0] < 1.1 * STEP:
            rare.append((score, piece))
    below = sorted((score for score, _ in rare), reverse=True)
    ordered = {**scores, **dict(zip(sorted(piece for _, piece in rare), below, strict=True))}
    return sorted(ordered.items(), key=lambda item: (-item[1], item[0]))


def _marked_spaces(backend: Tokenizer) -> Tokenizer:
    """Blanks as marks and one before the text, which decoding takes away again; Metaspace would lose a first blank."""
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), "isolated")
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return backend


def _fast(backend: Tokenizer, learning: Learning, **names: str) -> PreTrainedTokenizerFast:
    """As transformers has it."""
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        clean_up_tokenization_spaces=False,
        **({"additional_special_tokens": list(learning.special)} if learning.special else {}),
        **names,
    )
