"""A trained Unigram vocabulary for every model from scratch that takes BPE."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import csv_folder, rows
from tiny_qa import BORN
from trained_tokenizers import masked_tokenizer
from transformers import AutoTokenizer

from hftune.models.load import preset
from hftune.models.settings import MASK, ModelSection
from hftune.models.tokenizers import PRINTABLE_ASCII

Hftune = Any
TEXTS = [f"{name}. {name} was born in {town} and lives in {town} ." for name, town in BORN.items()]
SMALL = ("--num_hidden_layers", "1", "--num_attention_heads", "2", "--hidden_size", "16", "--vocab_size", "300")
UNIGRAM = ("--tokenizer_type", "unigram", "--max_steps", "2", "--batch_size", "4")


@pytest.mark.parametrize("text", ["Ann Ash was born", " a space first", "  two", "", " ", "born ⁇ in Rome", "<pad>"])
def test_typed_text_comes_back_exactly(text: str, tmp_path: Path) -> None:
    tokenizer = masked_tokenizer("unigram", TEXTS, 300, block_size=48)
    tokenizer.save_pretrained(tmp_path)
    for one in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        found = one(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert one.decode(found) == text.replace("⁇", one.unk_token)
        assert one.mask_token_id not in found and one.model_max_length == 48


def test_a_word_has_the_same_tokens_anywhere() -> None:
    tokenizer = masked_tokenizer("unigram", iter(TEXTS), 300)
    place = tokenizer("Rome")["input_ids"]
    assert tokenizer("was born in Rome")["input_ids"][-len(place) :] == place
    for answer in (f"Where?{MASK}Rome", f"Where?{MASK} Rome"):
        found = tokenizer(answer)["input_ids"]
        assert found[-len(place) :] == place and found[-len(place) - 1] == tokenizer.mask_token_id
    assert tokenizer.unk_token_id not in tokenizer(PRINTABLE_ASCII)["input_ids"], "what a keyboard types is known"
    assert masked_tokenizer("unigram", TEXTS, 300).get_vocab() == tokenizer.get_vocab()


@pytest.mark.parametrize("name", ["mingpt", "mingpt-tiny", "gpt2-tiny", "roberta-tiny"])
def test_the_same_texts_give_the_same_ids(name: str) -> None:
    texts = [text for _, text in rows(60, seed=3)]
    made = preset(ModelSection(model_name_or_path=f"scratch:{name}", tokenizer_type="unigram"))
    first, *others = (made.train_tokenizer(iter(texts), 300) for _ in range(3))
    assert all(other.get_vocab() == first.get_vocab() for other in others)
    assert first.decode(first(texts[0]).input_ids, skip_special_tokens=True).strip() == texts[0]
    if name == "roberta-tiny":
        assert first.pad_token_id == 1, "the positions of RoBERTa start after it"
        ends = [token for token in first.convert_ids_to_tokens(first("a", "b").input_ids) if token[0] == "<"]
        assert ends == ["<s>", "</s>", "</s>", "</s>"]


@pytest.mark.parametrize(
    ("command", "model"),
    [
        (("classify", "--data", "{labeled}"), "roberta-tiny"),
        (("pretrain", "--objective", "mlm", "--corpus", "{text}"), "roberta-tiny"),
        (("pretrain", "--objective", "clm", "--corpus", "{text}"), "gpt2-tiny"),
        (("pretrain", "--objective", "clm", "--corpus", "{text}", "--set", "task.block_size=32"), "mingpt-tiny"),
        (("pretrain", "--objective", "span", "--corpus", "{text}"), "mingpt-tiny"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value[:3]),
)
def test_every_model_that_takes_bpe_is_trained(
    hftune: Hftune, tmp_path: Path, command: tuple[str, ...], model: str
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{line} {line}\n" for _, line in rows(60, 5)))
    places = {"labeled": csv_folder(tmp_path / "labeled"), "text": text}
    named = [part.format(**places) for part in command]
    out = tmp_path / "run"
    shape = ["--block_size", "64"] if model == "mingpt-tiny" else []
    code, _, err = hftune(
        *named, "--model", f"scratch:{model}", *SMALL, *shape, *UNIGRAM, "--output_dir", str(out), "--json"
    )
    assert code == 0, err
    assert json.loads((out / "metrics.json").read_text())["verified"]
    saved = AutoTokenizer.from_pretrained(out / "model")
    assert type(saved.backend_tokenizer.model).__name__ == "Unigram" and len(saved) <= 300
    if command[2] == "span":
        (tmp_path / "train.tsv").write_text("Where?\tRome\nWho?\tAnn\n" * 4)
        answered = tmp_path / "answers"
        code, _, err = hftune(
            "finetune", "--from", str(out), "--data", str(tmp_path / "train.tsv"), "--max_steps", "1", "--output_dir",
            str(answered),
        )  # fmt: skip
        assert code == 0, err
        code, line, err = hftune("predict", str(answered), "Where?")
        assert code == 0 and json.loads(line)["text"] == "Where?", err


def test_a_bert_reads_wordpiece(hftune: Hftune) -> None:
    code, _, err = hftune("classify", "--data", "no-such-data", "--tokenizer_type", "unigram", "--model", "a/b")
    assert code == 2 and "tokenizer_type" in err and "from scratch" in err
    code, _, err = hftune("classify", "--data", "x", "--tokenizer_type", "unigram", "--model", "scratch:bert-tiny")
    assert code == 2 and "wordpiece" in err
