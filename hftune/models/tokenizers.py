"""Tokenizers trained on text: single characters, byte-level BPE, WordPiece and Unigram.

Each is an ordinary fast tokenizer: saved as tokenizer.json, it loads through AutoTokenizer without our code. The same
text gives the same ids in any process, because a resumed run must find its embeddings under the ids of its checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast, RobertaTokenizer

from hftune.cache import cache_key, cached
from hftune.errors import HftuneError, did_you_mean
from hftune.models.settings import MASK

logger = logging.getLogger(__name__)

END, PAD = "<|endoftext|>", "<|pad|>"
CHAR_PAD, CHAR_UNKNOWN = "<pad>", "<unk>"
PRINTABLE_ASCII = string.ascii_letters + string.digits + string.punctuation + " "
"""Always in a character vocabulary: a corpus may lack the question mark that a later question ends in."""
BERT_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# The padding token must have the id 1: RoBERTa's position numbers start right after it.
ROBERTA_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
UNIGRAM_SPECIAL = ("<pad>", "</s>", "<unk>")

MIN_CACHED_TEXTS = 2_000
"""Number of texts from which reading a vocabulary from the cache is faster than training it."""
# Training time grows with the square of the length of a word: anything longer is split before training.
MAX_WORD_LENGTH = 1000
_LONG_WORD = re.compile(rf"\S{{{MAX_WORD_LENGTH}}}")
SUBWORD = "##"
SPACE = "▁"
# A Unigram token stays within letters, digits or punctuation with the space before them, a run of spaces, or line ends.
WORDS = r"▁?[\p{L}\p{M}]+|▁?\p{N}+|▁?[^\s▁\p{L}\p{M}\p{N}]+|▁+(?=▁)|▁|\s+"

Special = str | AddedToken
Texts = Callable[[], Iterable[str]]
"""Returns an iterator over the texts; called again if they must be read twice."""


def train_tokenizer(
    kind: str,
    texts: Texts,
    vocab_size: int = 4000,
    *,
    family: str = "gpt2",
    min_frequency: int | None = None,
    special_tokens: Sequence[str] = (),
    block_size: int | None = None,
    printable_ascii: bool | None = None,
    exact: bool = True,
) -> PreTrainedTokenizerBase:
    """Train a tokenizer.

    Args:
        kind: char, bpe, wordpiece or unigram.
        texts: The training texts, of any size; read once or twice.
        vocab_size: Number of tokens, special tokens included; char has one for each character instead.
        family: Which models read it, a key of ``FORMATS``.
        min_frequency: How often a pair of tokens must occur to be merged; the family's by default.
        special_tokens: Special tokens in addition to those of the format.
        block_size: The model's longest sequence, kept as ``model_max_length``.
        printable_ascii: Whether all printable ASCII characters are in the vocabulary; the format decides by default.
        exact: Whether it is an error if the text gives fewer than ``vocab_size`` tokens.

    Raises:
        HftuneError: The text or the size rules this vocabulary out.
    """
    kinds = FORMATS[family]
    if kind not in kinds:
        raise HftuneError(
            f"unknown tokenizer type {kind!r}; expected one of {', '.join(kinds)}",
            hint=did_you_mean(kind, kinds) or f"use {next(iter(kinds))}",
        )
    form = kinds[kind]
    own = [str(token) for token in form.special]
    clash = [token for token in special_tokens if not token or token in own]
    if clash or len(set(special_tokens)) < len(special_tokens):
        raise HftuneError(
            f"special tokens must not be empty and must differ from each other and from {', '.join(own)}",
            hint="leave out the ones that exist already",
        )
    min_frequency = form.min_frequency if min_frequency is None else min_frequency
    printable_ascii = form.printable_ascii if printable_ascii is None else printable_ascii
    known = [PRINTABLE_ASCII] if printable_ascii else []
    backend = form.train(lambda: chain(known, texts()), vocab_size, min_frequency, [*form.special, *special_tokens])
    settings: dict[str, Any] = {**form.settings}
    if special_tokens:
        settings["additional_special_tokens"] = [*special_tokens]
    if block_size is not None:
        settings["model_max_length"] = block_size
    tokenizer = form.wrap(backend, settings)
    size = len(tokenizer)
    short = kind != "char" and size < vocab_size
    if exact and short:
        raise HftuneError(
            f"the text gives only {size:,} different tokens, vocab_size is {vocab_size:,}",
            hint=f"use {size} or fewer, more text, or a lower minimum frequency ({min_frequency})",
        )
    fewer = f" (the text does not give the {vocab_size} of vocab_size)" if short else ""
    logger.info("Trained a %s tokenizer with %d tokens%s", TOKENIZER_NAMES[kind], size, fewer)
    return tokenizer


def _train_characters(texts: Texts, _: int, __: int, special: Sequence[Special]) -> Tokenizer:
    """All characters of the texts, in code point order after the special tokens.

    Characters are Unicode code points and nothing is normalized, so that text made of known characters is decoded
    exactly. A ⁇ in a text becomes the mask, which is how prompts are written; "<pad>" and "<unk>" in a text are their
    characters.
    """
    characters: set[str] = set()
    masks = 0
    for text in texts():
        characters.update(text)
        masks += text.count(MASK)
    characters.discard(MASK)
    if not characters:
        raise HftuneError(
            "a character tokenizer needs text, and there is none", hint="check that the corpus file is not empty"
        )
    broken = sorted(char for char in characters if 0xD800 <= ord(char) <= 0xDFFF)
    if broken:
        raise HftuneError(
            f"the text has lone surrogates, such as U+{ord(broken[0]):04X}",
            hint="the file was read with the wrong encoding: save it as UTF-8",
        )
    if masks:
        logger.warning("The text has the mask character %s %d times; the model will see masks there.", MASK, masks)
    vocabulary = {str(token): index for index, token in enumerate([*special, *sorted(characters)])}
    # BPE without a single merge splits into characters, and is faster than splitting with a regular expression.
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=CHAR_UNKNOWN, fuse_unk=False))
    backend.decoder = decoders.Fuse()
    return backend


def _train_byte_pairs(
    texts: Texts, vocab_size: int, min_frequency: int, special: Sequence[Special], *, leading_space: bool = False
) -> Tokenizer:
    """Byte-level BPE as in GPT-2: any text is decoded exactly, and nothing is unknown.

    With ``leading_space`` a space is put before every text and removed again in decoding. So a word has the same tokens
    anywhere in a text: the place that a document names is the place that answers a question. Text after a ⁇ starts a
    new word, with a space or without.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    least = len(alphabet) + len(special)
    if vocab_size < least:
        raise HftuneError(
            f"a byte-level vocabulary has at least the 256 bytes and {len(special)} special tokens; "
            f"vocab_size is {vocab_size}",
            hint=f"use {least} or more",
        )
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if leading_space:
        backend.normalizer = normalizers.Prepend(" ")
        backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(special),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    _train(backend, trainer, texts)
    return backend


def _train_wordpiece(texts: Texts, vocab_size: int, min_frequency: int, special: Sequence[Special]) -> Tokenizer:
    """Uncased WordPiece as in BERT; spaces and unknown characters are lost."""
    backend = _train_word_pieces(texts, vocab_size, min_frequency, special)
    vocabulary = backend.get_vocab()
    _refuse_small(vocab_size, len(special) + sum(len(token.removeprefix(SUBWORD)) == 1 for token in vocabulary))
    backend.add_special_tokens(list(special))
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")],
    )
    return backend


def _train_word_pieces(texts: Texts, vocab_size: int, min_frequency: int, special: Sequence[Special]) -> Tokenizer:
    """WordPiece without special tokens around a text, with the same ids in every process."""
    # The tokenizers library numbers single characters inside words in the order of a hash table, and breaks ties
    # between tokens by these numbers. So it trains once to find them, and once more with their numbers given.
    found = _train_numbered(texts, vocab_size, min_frequency, special).get_vocab()
    inside = sorted(token for token in found if token.startswith(SUBWORD) and len(token) == len(SUBWORD) + 1)
    numbered = _train_numbered(texts, vocab_size, min_frequency, [*special, *inside]).get_vocab()
    return _uncased(models.WordPiece(numbered, unk_token="[UNK]"))


def _cached_word_pieces(texts: Texts, vocab_size: int, min_frequency: int, special: Sequence[Special]) -> Tokenizer:
    """Like ``_train_word_pieces``; the vocabulary of a large text is cached."""
    found = [split_long_words(text) for text in texts()]

    def train() -> dict[str, int]:
        vocabulary: dict[str, int] = _train_word_pieces(lambda: found, vocab_size, min_frequency, special).get_vocab()
        return vocabulary

    if len(found) < MIN_CACHED_TEXTS:
        vocabulary = train()
    else:
        digest = hashlib.sha256()
        for text in found:
            content = text.encode("utf-8", "surrogatepass")
            digest.update(len(content).to_bytes(8, "little") + content)
        vocabulary = cached(
            "vocabularies",
            cache_key(vocab_size, tokenizers.__version__, digest.hexdigest()),
            train,
            save=lambda vocabulary, new: new.info.update(vocabulary=vocabulary),
            load=lambda entry: dict(entry.info["vocabulary"]),
        )
    return _uncased(models.WordPiece(vocabulary, unk_token="[UNK]"))


def _train_numbered(texts: Texts, vocab_size: int, min_frequency: int, special: Sequence[Special]) -> Tokenizer:
    """One training run of the tokenizers library, which numbers ``special`` first, in the order given."""
    backend = _uncased(models.WordPiece(unk_token="[UNK]"))
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=list(special), show_progress=False
    )
    _train(backend, trainer, texts)
    return backend


def _uncased(model: models.WordPiece) -> Tokenizer:
    backend = Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


def _train_unigram(texts: Texts, vocab_size: int, _: int, special: Sequence[Special]) -> Tokenizer:
    """Unigram with marked spaces as in T5; characters that the text lacks are unknown."""
    names = [str(token) for token in special]
    # Checked here, because the library would never return if the vocabulary is smaller than the set of characters.
    characters = {SPACE}
    for text in texts():
        characters.update(text.replace(" ", ""))
    _refuse_small(vocab_size, len(special) + len(characters))
    backend = _marked_spaces(Tokenizer(models.Unigram()))
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=list(special), unk_token="<unk>", show_progress=False
    )
    _train(backend, trainer, texts)
    tokens = json.loads(backend.to_str())["model"]["vocab"]
    # Rounded: the last digits depend on the order in which a hash table is read, which differs between processes.
    scores = {token: round(score, 6) for token, score in tokens if token not in names}
    vocabulary = [*((name, 0.0) for name in names), *_ordered(scores)]
    settled = _marked_spaces(Tokenizer(models.Unigram(vocabulary, unk_id=names.index("<unk>"))))
    settled.add_special_tokens(list(special))
    return settled


def _train_masked_unigram(texts: Texts, vocab_size: int, _: int, special: Sequence[Special]) -> Tokenizer:
    """Unigram with the mask ⁇. Characters that are neither in the texts nor printable ASCII are unknown."""
    backend = _train_unigram(texts, vocab_size, 0, special)
    # A Unigram model would take a ⁇ of the text for the mask; here it is an unknown character.
    backend.normalizer = normalizers.Sequence([normalizers.Replace(MASK, "\ufffd"), backend.normalizer])
    return backend


def _train_roberta_unigram(texts: Texts, vocab_size: int, _: int, special: Sequence[Special]) -> Tokenizer:
    """Unigram between the special tokens of RoBERTa, as XLM-RoBERTa has them."""
    backend = _train_unigram(texts, vocab_size, 0, special)
    ids = [(name, backend.token_to_id(name)) for name in ("<s>", "</s>")]
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=ids
    )
    return backend


def _ordered(scores: dict[str, float]) -> list[tuple[str, float]]:
    """Unigram tokens from likely to unlikely, in the same order every time.

    Characters that are no likely token get scores below all others, each 0.0001 lower than the last, in the order of a
    hash table; here they get the same scores in alphabetical order.
    """
    single = sorted((score, token) for token, score in scores.items() if len(token) == 1)
    rare = single[:1]
    for score, token in single[1:]:
        if score - rare[-1][0] < 1.1e-4:
            rare.append((score, token))
    below = sorted((score for score, _ in rare), reverse=True)
    ordered = {**scores, **dict(zip(sorted(token for _, token in rare), below, strict=True))}
    return sorted(ordered.items(), key=lambda item: (-item[1], item[0]))


def _marked_spaces(backend: Tokenizer) -> Tokenizer:
    # Metaspace would lose a leading space of the text; here one is added and removed again in decoding.
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), "isolated")
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return backend


def _fast(backend: Tokenizer, settings: dict[str, Any]) -> PreTrainedTokenizerBase:
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **settings)


def _roberta(backend: Tokenizer, settings: dict[str, Any]) -> PreTrainedTokenizerBase:
    model = json.loads(backend.to_str())["model"]
    return RobertaTokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]], **settings)


def _bert(backend: Tokenizer, settings: dict[str, Any]) -> PreTrainedTokenizerBase:
    return BertTokenizer(vocab=backend.get_vocab(), **settings)


@dataclass(frozen=True)
class Format:
    """What the models of one family expect of a tokenizer of one type."""

    train: Callable[[Texts, int, int, Sequence[Special]], Tokenizer]
    """Texts, vocabulary size, minimum frequency, special tokens → the backend."""
    special: tuple[Special, ...]
    """Special tokens; they get the first ids, in this order."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Roles of the special tokens, and other arguments of the class."""
    min_frequency: int = 2
    """How often a pair of tokens must occur to be merged, by default."""
    printable_ascii: bool = False
    """Whether it knows all printable ASCII characters, by default."""
    wrap: Callable[[Tokenizer, dict[str, Any]], PreTrainedTokenizerBase] = _fast
    """Backend and settings → a tokenizer of the class that the family has in transformers."""


# The normalizer also puts a space before text that follows a ⁇, so a space that is there already must not count.
_SPAN_MASK = AddedToken(MASK, rstrip=True, normalized=False, special=True)
_SPANS = {"mask_token": MASK, "padding_side": "left"}
_ROBERTA_MASK = AddedToken("<mask>", lstrip=True, normalized=False, special=True)
FORMATS: dict[str, dict[str, Format]] = {
    "gpt2": {
        "bpe": Format(_train_byte_pairs, (END, PAD), {"eos_token": END, "bos_token": END, "pad_token": PAD}),
        "wordpiece": Format(
            _train_wordpiece, BERT_SPECIAL, {f"{token.strip('[]').lower()}_token": token for token in BERT_SPECIAL}
        ),
        "unigram": Format(
            _train_unigram, UNIGRAM_SPECIAL, {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
        ),
    },
    # With the mask ⁇, for span corruption and question answering.
    "mingpt": {
        "char": Format(
            _train_characters,
            (CHAR_PAD, MASK, CHAR_UNKNOWN),
            {"pad_token": CHAR_PAD, "unk_token": CHAR_UNKNOWN, "split_special_tokens": True, **_SPANS},
            printable_ascii=True,
        ),
        "bpe": Format(partial(_train_byte_pairs, leading_space=True), (PAD, _SPAN_MASK), {"pad_token": PAD, **_SPANS}),
        "unigram": Format(
            _train_masked_unigram,
            (CHAR_PAD, _SPAN_MASK, CHAR_UNKNOWN),
            {"pad_token": CHAR_PAD, "unk_token": CHAR_UNKNOWN, **_SPANS},
            printable_ascii=True,
        ),
    },
    "roberta": {
        "bpe": Format(_train_byte_pairs, ROBERTA_SPECIAL, min_frequency=0, wrap=_roberta),
        "unigram": Format(
            _train_roberta_unigram,
            (*ROBERTA_SPECIAL[:-1], _ROBERTA_MASK),
            {
                **{"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>"},
                **{"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": _ROBERTA_MASK},
            },
            printable_ascii=True,
        ),
    },
    "bert": {"wordpiece": Format(_cached_word_pieces, BERT_SPECIAL, min_frequency=0, wrap=_bert)},
}
"""How a tokenizer is trained, by the family of models that reads it and by its type; the first type is the default."""
TOKENIZER_NAMES = {"char": "character", "bpe": "byte-level BPE", "wordpiece": "WordPiece", "unigram": "Unigram"}


def split_long_words(text: str) -> str:
    """The text with a space inside "words" of more than MAX_WORD_LENGTH characters."""
    return text if len(text) <= MAX_WORD_LENGTH else _LONG_WORD.sub(r"\g<0> ", text)


def _train(backend: Tokenizer, trainer: Any, texts: Texts) -> None:
    empty = True

    def checked() -> Iterator[str]:
        nonlocal empty
        for text in texts():
            empty = empty and not text.strip()
            yield split_long_words(text)

    backend.train_from_iterator(checked(), trainer)
    if empty:
        raise HftuneError("there is no text to train a tokenizer on", hint="check that the file is the one you meant")


def _refuse_small(vocab_size: int, least: int) -> None:
    if vocab_size < least:
        raise HftuneError(
            f"the text has {least:,} different characters and special tokens, vocab_size is {vocab_size:,}",
            hint=f"use {least} or more, or --kind bpe, which has 256 bytes in place of characters",
        )


def end_of_text(tokenizer: PreTrainedTokenizerBase, name: str) -> int:
    """The id of the token that separates documents.

    Raises:
        HftuneError: The vocabulary has none.
    """
    if tokenizer.eos_token_id is None:
        raise HftuneError(
            f"the tokenizer of {name} has no end-of-text token to separate documents",
            hint="train one with `hftune tokenizer train --kind bpe --corpus TEXT --output FOLDER`, and name it with "
            "--tokenizer FOLDER",
        )
    return int(tokenizer.eos_token_id)


def pad_with_eos(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Let a tokenizer without a padding token, such as GPT-2's, pad with its end-of-text token, on the right.

    The attention mask hides it, and a classifier that reads the last token looks for the last one before the padding.
    """
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token
        tokenizer.padding_side = "right"
        logger.info("The tokenizer of %s has no padding token: padding with %s", name, tokenizer.eos_token)
