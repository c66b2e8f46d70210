"""A tokenizer of learned pieces of words, for a GPT that is pretrained by span corruption. Made by ``presets``.

Where ``chars`` has one token a letter, this has one for what often stands together: a name or a place is a few tokens
and not a dozen. It marks holes, questions and answers in the same way, with ⁇. Byte-level BPE: any text comes back
exactly, and nothing is unknown. Saved as tokenizer.json, it loads through AutoTokenizer with no code of ours.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from hftune.errors import HftuneError
from hftune.models.chars import MASK
from hftune.models.vocabulary import PAD, in_bounds

LEAST = 2
"""Times that a pair must occur to become a piece."""


def build_piece_tokenizer(
    texts: Iterable[str], vocab_size: int, *, block_size: int | None = None
) -> PreTrainedTokenizerFast:
    """Learn pieces from ``texts``: the same texts give the same ids.

    A blank is put before every text, and taken away again in decoding. So a word has the same pieces wherever it
    stands: the place that a document names is the place that answers a question.

    Args:
        texts: what to learn from; read once.
        vocab_size: tokens in all, padding, ⁇ and the 256 bytes among them; fewer where the text gives no more.
        block_size: the model's longest sequence, kept as ``model_max_length``.

    Raises:
        HftuneError: there is nothing to learn from, or the size has no room for the bytes.
    """
    alphabet, special = sorted(pre_tokenizers.ByteLevel.alphabet()), [PAD, MASK]
    if vocab_size < len(alphabet) + len(special):
        raise HftuneError(
            f"a vocabulary of pieces has the 256 bytes and {len(special)} special tokens at least; {vocab_size} was "
            "asked for",
            hint=f"set model.vocab_size to {len(alphabet) + len(special)} or more",
        )
    kept = [in_bounds(text) for text in texts if text.strip()]
    if not kept:
        raise HftuneError(
            "there is no text to learn pieces of words from",
            hint="check that the corpus file is not empty and is the one you meant",
        )
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.Prepend(" ")
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=LEAST,
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    backend.train_from_iterator(kept, trainer)
    limit = {} if block_size is None else {"model_max_length": block_size}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        mask_token=MASK,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        **limit,
    )
