"""A tokenizer of single characters, for training a GPT from scratch. Called by the tasks that do so.

It is an ordinary fast tokenizer of the tokenizers library: saved as tokenizer.json, it loads through
AutoTokenizer with no code of ours. Characters are Unicode code points and nothing is normalized, so text
made of seen characters comes back exactly.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from hftune.errors import HftuneError
from hftune.models.vocabulary import unknown_token

logger = logging.getLogger(__name__)

PAD = "<pad>"
MASK = "⁇"
UNKNOWN = "<unk>"


def build_char_tokenizer(texts: Iterable[str], *, block_size: int | None = None) -> PreTrainedTokenizerFast:
    """Make a tokenizer of all characters in ``texts``.

    Ids 0, 1 and 2 are padding, the mask ⁇ and unknown; the characters follow in code point order, so the
    same text gives the same ids on any machine. The mask is one character: a ⁇ in a text becomes the mask,
    which is how prompts are written. "<pad>" and "<unk>" in a text are just their characters, never the
    tokens.

    Args:
        texts: what to collect the characters from; read once.
        block_size: the model's longest sequence, kept as ``model_max_length``.

    Raises:
        HftuneError: there is no character in the texts, or one that is no valid Unicode.
    """
    characters: set[str] = set()
    masks = 0
    for text in texts:
        characters.update(text)
        masks += text.count(MASK)
    characters.discard(MASK)
    if not characters:
        raise HftuneError(
            "A character tokenizer needs text to take its characters from, and got none.",
            hint="Check that the corpus file is not empty and is the one you meant.",
        )
    broken = sorted(char for char in characters if 0xD800 <= ord(char) <= 0xDFFF)
    if broken:
        raise HftuneError(
            f"The text holds half characters (lone surrogates), such as U+{ord(broken[0]):04X}.",
            hint="The file was read with the wrong encoding: save it as UTF-8, or read it with its own.",
        )
    if masks:
        logger.warning("The text holds the mask character %s %d times; the model will see masks there.", MASK, masks)
    vocabulary = {token: index for index, token in enumerate([PAD, MASK, UNKNOWN, *sorted(characters)])}
    # Byte-pair encoding without a single merge leaves characters, and is faster than splitting by a regex.
    backend = Tokenizer(BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN, fuse_unk=False))
    backend.decoder = decoders.Fuse()
    limit = {} if block_size is None else {"model_max_length": block_size}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        mask_token=MASK,
        unk_token=UNKNOWN,
        split_special_tokens=True,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        **limit,
    )


@dataclass(frozen=True)
class UnknownCharacters:
    """Characters of some text that a tokenizer does not know."""

    count: int
    """Occurrences, all characters together."""
    total: int
    """Characters looked at."""
    examples: tuple[tuple[str, int], ...]
    """The most frequent unknown characters, each with its occurrences."""

    def describe(self) -> str:
        """One sentence for a log or an error; empty where everything is known."""
        if not self.count:
            return ""
        shown = ", ".join(f"{char!r} (U+{ord(char):04X}) × {times}" for char, times in self.examples)
        return f"{self.count} of {self.total} characters are unknown to the tokenizer: {shown}"


def count_unknown(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], *, examples: int = 5) -> UnknownCharacters:
    """Count the characters that a tokenizer of any kind can't say, so that they are said and not lost in silence."""
    seen: Counter[str] = Counter()
    for text in texts:
        seen.update(text)
    sign, characters = unknown_token(tokenizer), sorted(seen)
    encoded = tokenizer(characters, add_special_tokens=False)["input_ids"] if characters and sign is not None else []
    # Ties go by code point, so that the message is the same every time.
    unknown = [(char, seen[char]) for char, ids in zip(characters, encoded, strict=False) if sign in ids]
    ranked = sorted(unknown, key=lambda item: -item[1])
    return UnknownCharacters(sum(times for _, times in unknown), seen.total(), tuple(ranked[:examples]))


def unknown_in(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], where: str) -> str | None:
    """What to warn of where some text holds characters that the model can't tell apart; None where all are known."""
    found = count_unknown(tokenizer, texts)
    return f"{where}: {found.describe()}; the model sees one sign for all of them" if found.count else None
