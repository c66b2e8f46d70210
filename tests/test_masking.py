"""Masking: how much, with what, never special tokens, and always the same for the same seed, epoch and example."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from crash_case import recipe, train_session, write_data
from facts import hftune_error
from transformers import BertTokenizer, GPT2Tokenizer

from hftune.files import read_jsonl
from hftune.tasks.mlm import IGNORED, WORDS, MaskedRows, Masking, make_examples, masking_for
from hftune.tasks.tokens import IDS, Encoded

pytestmark = pytest.mark.numeric

SPECIAL = frozenset(range(5))
MASK = 4
VOCABULARY = 1000
TOKENS, LENGTH = 100_000, 100


def masking(probability: float = 0.15, seed: int = 1) -> Masking:
    return Masking(seed, probability, MASK, SPECIAL, np.arange(5, VOCABULARY))


def rows() -> np.ndarray:
    ids = np.random.default_rng(0).integers(5, VOCABULARY, (TOKENS // LENGTH, LENGTH))
    ids[:, 0], ids[:, -1] = 2, 3
    return ids


def within(share: float, expected: float, count: int) -> bool:
    """Whether a share is within five standard deviations of what a coin of that kind gives."""
    return abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / count)


@pytest.mark.parametrize("probability", [0.15, 0.4])
def test_shares_over_100_000_tokens(probability: float) -> None:
    ids = rows()
    made = [masking(probability)(row.tolist(), 0, number) for number, row in enumerate(ids)]
    shown, truth = np.asarray([one for one, _ in made]), np.asarray([other for _, other in made])
    chosen = truth != IGNORED
    assert not chosen[:, [0, -1]].any(), "special tokens are never chosen"
    assert (shown[~chosen] == ids[~chosen]).all()
    assert (truth[chosen] == ids[chosen]).all()
    inner, picked = TOKENS - 2 * len(ids), int(chosen.sum())
    assert within(picked / inner, probability, inner)
    same = shown[chosen] == ids[chosen]
    masked = shown[chosen] == MASK
    assert within(masked.mean(), 0.8, picked)
    # One replacement in 995 is the token itself.
    assert within(same.mean(), 0.1 + 0.1 / (VOCABULARY - 5), picked)
    others = shown[chosen][~masked & ~same]
    assert others.min() >= 5, "a special token never stands in for another"
    assert len(np.unique(others)) > 0.5 * min(len(others), VOCABULARY), "replacements come from all over the vocabulary"


def test_a_pure_function_of_seed_epoch_and_example() -> None:
    row = rows()[0].tolist()
    first = masking()(row, 3, 7)
    np.random.default_rng(0).random(10)
    np.random.seed(5)
    assert masking()(row, 3, 7) == first
    others = [masking()(row, 4, 7), masking()(row, 3, 8), masking(seed=2)(row, 3, 7)]
    assert all(other != first for other in others)
    assert len({str(other) for other in others}) == 3


def test_whole_words_are_chosen_whole() -> None:
    words = [-1, *np.repeat(np.arange(33), 3)[:98].tolist(), -1]
    chosen = np.zeros(LENGTH)
    for number, row in enumerate(rows()):
        truth = np.asarray(masking()(row.tolist(), 0, number, words)[1])
        for word in range(33):
            reported = truth[np.asarray(words) == word] != IGNORED
            assert reported.all() or not reported.any()
        chosen += truth != IGNORED
    assert within(chosen[1:-1].sum() / (98 * 1000), 0.15, 33_000)


@pytest.fixture(scope="module")
def tokenizer() -> BertTokenizer:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "foo", "##d", "was", "go", "##od", "."]
    return BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)})


def parts(examples: Encoded, column: str) -> list[list[int]]:
    return [examples.columns[column][examples.place(row)].tolist() for row in range(len(examples))]


def test_lines_and_blocks(tokenizer: BertTokenizer) -> None:
    texts = ["the food was good.", "the food", "good"]
    lines = make_examples(tokenizer, texts, max_length=6, block_size=None, words=True)
    assert [" ".join(tokenizer.convert_ids_to_tokens(row)) for row in parts(lines, IDS)] == [
        "[CLS] the foo ##d was [SEP]",
        "[CLS] the foo ##d [SEP]",
        "[CLS] go ##od [SEP]",
    ]
    assert parts(lines, WORDS) == [[0, 1, 2, 2, 3, 0], [0, 1, 2, 2, 0], [0, 1, 1, 0]]
    blocks = make_examples(tokenizer, texts, max_length=6, block_size=7, words=True)
    assert [" ".join(tokenizer.convert_ids_to_tokens(row)) for row in parts(blocks, IDS)] == [
        "[CLS] the foo ##d was go [SEP]",
        "[CLS] ##od . [SEP] the foo [SEP]",
        "[CLS] ##d [SEP] go ##od [SEP]",
    ]
    assert parts(blocks, WORDS) == [[0, 1, 2, 2, 3, 4, 0], [0, 1, 2, 0, 3, 4, 0], [0, 1, 0, 2, 2, 0]]
    assert max(blocks.sizes) == 7
    row = MaskedRows(blocks, masking_for(tokenizer, 0.5, 1))[3, 1]
    whole = [a if b == IGNORED else b for a, b in zip(row["input_ids"], row["labels"], strict=True)]
    assert whole == parts(blocks, IDS)[1]


def test_a_tokenizer_without_a_mask_token() -> None:
    gpt = GPT2Tokenizer(vocab={"<|endoftext|>": 0, "a": 1}, merges=[])
    with hftune_error("GPT2Tokenizer", "mask") as refused:
        masking_for(gpt, 0.15, 1)
    assert "BERT or RoBERTa" in refused.value.hint


def test_a_batch_without_a_masked_token_trains_nothing(tmp_path: Path) -> None:
    """Its loss is a sum over no tokens, divided by their number: 0 / 0 would end the run."""
    few = recipe(write_data(tmp_path), "mlm", **{"task.mlm_probability": 0.03, "train.num_train_epochs": 1})
    train_session(few, tmp_path / "run")
    losses = [row["loss"] for row in read_jsonl(tmp_path / "run" / "history.jsonl") if "loss" in row]
    assert losses and all(math.isfinite(loss) for loss in losses) and min(losses) < max(losses)
