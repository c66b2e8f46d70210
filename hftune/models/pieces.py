"""A tokenizer of learned pieces of words, for a GPT that is pretrained by span corruption. Made by ``presets``.

Where ``chars`` has one token a letter, this has one for what often stands together: a name or a place is a few tokens
and not a dozen. It marks holes, questions and answers in the same way, with ⁇. Byte-level BPE: any text comes back
exactly, and nothing is unknown. Saved as tokenizer.json, it loads through AutoTokenizer with no code of ours.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tokenizers import AddedToken, decoders, normalizers
from transformers import PreTrainedTokenizerFast

from hftune.models.chars import MASK
from hftune.models.vocabulary import PAD, Learning, byte_pairs

logger = logging.getLogger(__name__)


def build_piece_tokenizer(
    texts: Iterable[str], vocab_size: int, *, block_size: int | None = None
) -> PreTrainedTokenizerFast:
    """Learn pieces from ``texts``: the same texts give the same ids.

    A blank is put before every text, and taken away again in decoding. So a word has the same pieces wherever it
    stands: the place that a document names is the place that answers a question. What is typed behind a ⁇ is taken
    for the beginning of a word, with a blank or without.

    Args:
        texts: what to learn from; read once.
        vocab_size: tokens in all, padding, ⁇ and the 256 bytes among them; fewer where the text gives no more.
        block_size: the model's longest sequence, kept as ``model_max_length``.

    Raises:
        HftuneError: there is nothing to learn from, or the size has no room for the bytes.
    """
    # The blank is put before what follows a ⁇ as well, so the one that stands there must not count beside it.
    mark = AddedToken(MASK, rstrip=True, normalized=False, special=True)
    backend = byte_pairs(lambda: texts, Learning(vocab_size), (PAD, mark), normalizers.Prepend(" "))
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    size = backend.get_vocab_size()
    fewer = f", all that the text gives of the {vocab_size} asked for" if size < vocab_size else ""
    logger.info("the vocabulary is learned from the text: byte-level BPE, %d tokens%s", size, fewer)
    limit = {} if block_size is None else {"model_max_length": block_size}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        mask_token=MASK,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        **limit,
    )
