"""The character tokenizer: exact round trips, honest unknowns, and no code of ours at load."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from facts import hftune_error
from trained_tokenizers import char_tokenizer
from transformers import AutoTokenizer

from hftune.errors import HftuneError
from hftune.models.settings import MASK
from hftune.models.tokenizer_stats import count_unknown
from hftune.models.tokenizers import CHAR_PAD, CHAR_UNKNOWN, train_tokenizer

TEXTS = [
    "  Where was José born?\t⁇ Zürich ⁇\r\n",
    "e\u0301 is not é; \u200b and \u00a0 count, so do 漢字, עברית, 👩‍👩‍👧 and \U0001f1ea\U0001f1fa.",
    'Tags like <pad>, <unk> and "  two  spaces " , stay . As they are !\n\n',
    "\x00\x7f\ufeff�",
]


def test_round_trip_is_exact_also_after_loading(tmp_path: Path) -> None:
    tokenizer = char_tokenizer(TEXTS)
    tokenizer.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.py"))
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for text in [*TEXTS, "".join(reversed("".join(TEXTS))), ""]:
        for each in (tokenizer, loaded):
            ids = each(text)["input_ids"]
            assert len(ids) == len(text)
            assert each.decode(ids) == text
    assert loaded.padding_side == "left"
    assert loaded.get_vocab() == tokenizer.get_vocab()


def test_special_tokens_and_order(tmp_path: Path) -> None:
    tokenizer = char_tokenizer(["cab⁇"], block_size=77)
    assert (tokenizer.pad_token, tokenizer.mask_token, tokenizer.unk_token) == (CHAR_PAD, MASK, CHAR_UNKNOWN)
    assert (tokenizer.pad_token_id, tokenizer.mask_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    assert tokenizer("abc⁇")["input_ids"] == [3, 4, 5, 1]
    assert len(tokenizer) == 6
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.model_max_length == 77
    assert loaded.mask_token_id == 1
    assert loaded(["a", "abc"], padding=True)["input_ids"] == [[0, 0, 3], [3, 4, 5]]
    assert loaded.decode([3, 1, 0, 0], skip_special_tokens=True) == "a"


def test_token_names_in_a_text_are_only_characters() -> None:
    tokenizer = char_tokenizer([CHAR_PAD + CHAR_UNKNOWN])
    ids = tokenizer(CHAR_PAD + CHAR_UNKNOWN)["input_ids"]
    assert len(ids) == len(CHAR_PAD + CHAR_UNKNOWN) and not {0, 2} & set(ids)


def test_each_unknown_character_is_one_unknown_token_and_is_counted() -> None:
    tokenizer = char_tokenizer(["abc "])
    texts = ["aXXb", "Y ⁇ X<pad>"]
    ids = [index for text in texts for index in tokenizer(text)["input_ids"]]
    unknown = count_unknown(tokenizer, texts, examples=2)
    assert unknown.count == ids.count(tokenizer.unk_token_id) == 8
    assert unknown.total == len(ids) == 14
    assert unknown.examples == (("X", 3), ("<", 1))
    assert unknown.describe() == ("8 of 14 characters are unknown to the tokenizer: 'X' (U+0058) × 3, '<' (U+003C) × 1")
    known = count_unknown(tokenizer, ["abc⁇"])
    assert (known.count, known.examples, known.describe()) == (0, (), "")


def test_unknown_characters_of_other_tokenizers_are_counted_too() -> None:
    texts = ["a cat sat, and a bat sat"] * 3
    pieces = train_tokenizer("wordpiece", lambda: texts, 40, exact=False)
    assert count_unknown(pieces, ["a cat ☃ ☃ á"]).examples == (("☃", 2),), "blanks are no tokens, and á is a"
    assert count_unknown(train_tokenizer("bpe", lambda: texts, 260), ["☃"]).count == 0


@pytest.mark.parametrize("texts", [[], ["", ""], ["⁇⁇"]])
def test_no_characters_is_an_error_with_a_hint(texts: list[str]) -> None:
    with hftune_error("text") as caught:
        char_tokenizer(texts)
    assert "corpus" in caught.value.hint


def test_half_characters_are_named() -> None:
    with pytest.raises(HftuneError, match=r"U\+D83D") as caught:
        char_tokenizer(["ok \ud83d"])
    assert "UTF-8" in caught.value.hint


def test_masks_in_the_text_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        char_tokenizer(["a⁇", "⁇"])
    assert "2 times" in caplog.text
