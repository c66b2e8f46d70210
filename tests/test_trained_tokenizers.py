"""Tokenizers learned from text: exact, deterministic, refused with a reason; the commands that make and show them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from facts import hftune_error
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hftune.errors import HftuneError
from hftune.models.tokenizer_stats import compression, longest_tokens, plain_text_kwargs, saved_tokenizer, split_text
from hftune.models.tokenizers import FORMATS, end_of_text, split_long_words, train_tokenizer
from hftune.tasks.mlm import make_examples

TEXTS = ["the cat sat on the mat", "the dog sat on the log", "a cat and a dog, both naïve", "that is all"] * 5
ROOT = Path(__file__).parent.parent
STORIES = (ROOT / "data" / "prose" / "train.txt").read_text(encoding="utf-8")[:60_000]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    """Byte-level BPE as AutoTokenizer gives it back."""
    folder = tmp_path_factory.mktemp("bpe")
    train_tokenizer("bpe", lambda: TEXTS, 280, special_tokens=("<|user|>",)).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


@given(st.text())
@example("<|endoftext|><|pad|><|user|>")
@example("  two\n\n\tblanks\u00a0\u2028 and \x00 nothing\r\n")
@example("e\u0301 é 漢字 👩‍👩‍👧 \U0010ffff")
@settings(max_examples=150, deadline=None)
def test_any_text_comes_back_exactly(saved: PreTrainedTokenizerFast, text: str) -> None:
    ids = saved(text, **plain_text_kwargs(saved))["input_ids"]
    assert saved.decode(ids) == text
    assert not set(ids) & set(saved.all_special_ids), "text that is trained on is never taken for a mark"


@pytest.mark.parametrize("kind", FORMATS["gpt2"])
def test_special_tokens_are_tokens_to_others_and_characters_in_training(kind: str, tmp_path: Path) -> None:
    size = {"bpe": 275, "wordpiece": 60, "unigram": 40}[kind]
    train_tokenizer(kind, lambda: TEXTS, size, exact=False).save_pretrained(tmp_path)
    made = AutoTokenizer.from_pretrained(tmp_path)
    mark = {"bpe": "<|endoftext|>", "wordpiece": "[MASK]", "unigram": "</s>"}[kind]
    special = made.convert_tokens_to_ids(mark)
    assert special in made(f"the {mark} cat")["input_ids"]
    assert special not in made(f"the {mark} cat", add_special_tokens=False, **plain_text_kwargs(made))["input_ids"]
    assert special in made(f"the {mark} cat")["input_ids"], "one call leaves the next as it was"


def test_a_masked_language_model_sees_no_mask_in_its_text() -> None:
    made = train_tokenizer("wordpiece", lambda: TEXTS, 60, exact=False)
    for block in (None, 8):
        found = make_examples(made, ["the [MASK] cat"], max_length=20, block_size=block, words=False)
        assert made.mask_token_id not in set(found.columns["input_ids"].tolist())


@given(st.text(alphabet=sorted(set(STORIES)), max_size=30))
@example(" the  cat\n the dog ")
@example(STORIES[:5000])
@settings(max_examples=100, deadline=None)
def test_unigram_gives_back_what_it_knows_and_does_not_cross_words(pieces: PreTrainedTokenizerFast, text: str) -> None:
    ids = pieces(text, **plain_text_kwargs(pieces))["input_ids"]
    assert pieces.unk_token_id not in ids and pieces.decode(ids) == text
    for piece in split_text(pieces, text):
        word = piece.removeprefix("▁")
        assert word.isalpha() or not any(map(str.isalpha, word)), f"{piece!r} is no part of a word"


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    """Unigram as AutoTokenizer gives it back."""
    folder = tmp_path_factory.mktemp("unigram")
    train_tokenizer("unigram", lambda: STORIES.split("\n\n"), 300).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def test_tokens_are_shown_as_they_are(pieces: PreTrainedTokenizerFast) -> None:
    assert "".join(split_text(pieces, "the cat sat")) == "▁the▁cat▁sat"
    assert split_text(pieces, "☃")[-1] == "<unk>"
    of_bytes = train_tokenizer("bpe", lambda: ["é"] * 9, 259)
    assert split_text(of_bytes, "é日") == ["é", "<0xE6>", "<0x97>", "<0xA5>"], "whole characters, else bytes"


def test_the_saved_tokenizer_has_what_was_requested(saved: PreTrainedTokenizerFast) -> None:
    assert len(saved) == 280
    assert saved.eos_token == saved.bos_token == "<|endoftext|>" and saved.pad_token == "<|pad|>"
    assert saved.convert_tokens_to_ids("<|user|>") == 2
    assert end_of_text(saved, "it") == saved.convert_tokens_to_ids("<|endoftext|>") == 0
    assert split_text(saved, "the cat") == ["the", " cat"]


def test_the_same_text_gives_the_same_ids_in_any_process() -> None:
    sizes = {"bpe": 275, "wordpiece": 60, "unigram": 40}
    assert set(sizes) == set(FORMATS["gpt2"])
    code = (
        "from hftune.models.tokenizers import train_tokenizer\n"
        f"for kind, size in {sizes!r}.items():\n"
        f"    made = train_tokenizer(kind, lambda: {TEXTS!r}, size, exact=False)\n"
        "    print(made.backend_tokenizer.to_str())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    for (kind, size), there in zip(sizes.items(), done.stdout.splitlines(), strict=True):
        here = train_tokenizer(kind, lambda: TEXTS, size, exact=False)
        assert json.loads(there) == json.loads(here.backend_tokenizer.to_str()), kind


@pytest.mark.parametrize(
    ("kind", "size", "texts", "output", "hint"),
    [
        ("bpe", 200, TEXTS, "256 bytes", "258"),
        ("bpe", 9000, TEXTS, "different tokens", "or fewer"),
        ("bpe", 400, [], "no text", "you meant"),
        ("bpe", 400, ["  \n"], "no text", "you meant"),
        ("unigram", 10, TEXTS, "different characters", "or more"),
        ("wordpiece", 9, TEXTS, "different characters", "or more"),
        ("wordpeice", 400, TEXTS, "wordpeice", "wordpiece"),
    ],
)
def test_what_can_not_be_learned_is_reported(kind: str, size: int, texts: list[str], output: str, hint: str) -> None:
    with pytest.raises(HftuneError) as caught:
        train_tokenizer(kind, lambda: texts, size)
    assert output in caught.value.message and hint in caught.value.hint


def test_special_tokens_are_distinguished() -> None:
    for special in (("<|pad|>",), ("<a>", "<a>"), ("",)):
        with hftune_error("<|endoftext|>"):
            train_tokenizer("bpe", lambda: TEXTS, 300, special_tokens=special, exact=False)


def test_compression_counts_bytes_tokens_and_unknown_ones(saved: PreTrainedTokenizerFast) -> None:
    found = compression(saved, ["the cat", "é"])
    assert (found.bytes, found.tokens, found.unknown, found.whole) == (9, 2 + len(saved("é")["input_ids"]), 0, True)
    assert found.bytes_per_token == 9 / found.tokens
    pieces = train_tokenizer("unigram", lambda: TEXTS, 40, exact=False)
    assert compression(pieces, ["the ☃ cat"]).unknown == 1
    assert longest_tokens(saved, 1)[0].strip() in "the cat sat on the mat the dog sat on the log"


def test_a_model_without_an_end_of_text_is_refused() -> None:
    with hftune_error("x") as caught:
        end_of_text(train_tokenizer("wordpiece", lambda: TEXTS, 60, exact=False), "x")
    assert "--kind bpe" in caught.value.hint


def test_the_command_learns_shows_and_overwrites_nothing(
    here: Path, hftune: Callable[..., tuple[int, str, str]]
) -> None:
    (here / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), encoding="utf-8")
    asked = ("tokenizer", "train", "--corpus", "text.jsonl", "--vocab-size", "270", "--output", "mine")
    code, out, err = hftune(*asked, "--special-token", "<|user|>", "--sample", "the cat", "--json")
    assert code == 0, err
    reported = json.loads(out)
    assert reported["vocabulary"] == 270 and "<|user|>" in reported["special_tokens"]
    assert reported["compression"]["train"]["unknown_rate"] == 0.0
    assert reported["compression"]["train"]["bytes"] == sum(len(text.encode()) for text in TEXTS)
    assert "".join(reported["sample"]["tokens"]) == "the cat"
    assert AutoTokenizer.from_pretrained(here / "mine").vocab_size == 270
    assert sorted(path.name for path in here.iterdir()) == ["mine", "text.jsonl"], "nothing else is left"
    code, _, err = hftune(*asked)
    assert code == 2 and "mine" in err
    code, out, _ = hftune("tokenizer", "show", "mine", "the cat", "--corpus", "text.jsonl")
    assert code == 0 and "bytes per token" in out and "│" in out
    code, _, err = hftune("tokenizer", "show", "nosuch")
    assert code == 2 and "the tokenizer 'nosuch'" in err and "--model" not in err
    for kind, objective in (("wordpiece", "mlm"), ("unigram", "clm")):
        size = {"wordpiece": "40", "unigram": "24"}[kind]
        asked = ("--corpus", "text.jsonl", "--kind", kind, "--vocab-size", size, "--output", kind)
        code, out, err = hftune("tokenizer", "train", *asked)
        assert code == 0 and f"--objective {objective} --corpus" in out and f"--tokenizer {kind}" in out, err


@pytest.mark.parametrize(
    ("content", "output"),
    [(b"", "no text"), (b"\x89PNG\r\n\x1a\n\x00", "binary"), (b"caf\xe9 " * 50, "not UTF-8"), (b" \n \n", "no text")],
    ids=["empty", "binary", "latin1", "blank"],
)
def test_text_that_is_none_is_reported(
    here: Path, hftune: Callable[..., tuple[int, str, str]], content: bytes, output: str
) -> None:
    (here / "text.txt").write_bytes(content)
    code, _, err = hftune("tokenizer", "train", "--corpus", "text.txt", "--vocab-size", "300", "--output", "mine")
    assert code == 2 and output in err and not (here / "mine").exists(), err


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_a_word_of_a_million_characters_does_not_hold_learning_up(kind: str) -> None:
    """Ten minutes and more without the bound; what is learned of other words does not depend on it."""
    texts = ["the cat saw a bird and the dog ran home " * 50]
    made = train_tokenizer(kind, lambda: [*texts, "a" * 1_000_000], 300, exact=False)
    assert made.tokenize("the bird")
    assert split_long_words("x " * 1000) == "x " * 1000 and max(map(len, split_long_words("y" * 5000).split())) == 1000


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_a_saved_tokenizer_is_read_alike_without_transformers(kind: str, tmp_path: Path) -> None:
    vocab_size = {"bpe": 270, "wordpiece": 60, "unigram": 40}[kind]
    texts = ["the food was great, and the café too", "Wo bist du? 😀 [MASK] <|endoftext|>", "never again 123"] * 20
    train_tokenizer(kind, lambda: texts, vocab_size, special_tokens=["<note>"]).save_pretrained(tmp_path)
    theirs, mine = AutoTokenizer.from_pretrained(tmp_path), saved_tokenizer(str(tmp_path))
    assert mine is not None and len(mine) == len(theirs)
    assert mine.all_special_tokens == theirs.all_special_tokens
    assert compression(mine, texts) == compression(theirs, texts)
    assert longest_tokens(mine) == longest_tokens(theirs)
    sample = "café <note> [MASK] 漢"
    assert split_text(mine, sample) == split_text(theirs, sample)


def test_what_only_transformers_can_read_is_left_to_it(tmp_path: Path) -> None:
    assert saved_tokenizer("user/name") is None and saved_tokenizer(str(tmp_path)) is None
    train_tokenizer("bpe", lambda: ["some text"] * 9, 262, min_frequency=1).save_pretrained(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    stated = json.loads(config.read_text(encoding="utf-8"))
    assert saved_tokenizer(str(tmp_path)) is not None
    config.write_text(json.dumps({**stated, "auto_map": {"AutoTokenizer": "x.Y"}}), encoding="utf-8")
    assert saved_tokenizer(str(tmp_path)) is None, "code that comes with it needs consent"
    config.write_text(json.dumps(stated), encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    assert saved_tokenizer(str(tmp_path)) is None
