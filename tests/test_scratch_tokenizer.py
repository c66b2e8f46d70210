"""Tokenizers of scratch models: the same texts give the same ids, or a resumed run would mix up its embeddings."""

from __future__ import annotations

import pytest
from tiny import rows

from hftune.models.presets import PRESETS


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("vocab_size", [90, 300], ids=["cut-off", "all-pieces"])
def test_the_same_texts_give_the_same_ids(name: str, vocab_size: int) -> None:
    texts = [text for _, text in rows(60, seed=3)]
    first, *others = (PRESETS[name].train_tokenizer(iter(texts), vocab_size) for _ in range(4))
    for other in others:
        assert other.get_vocab() == first.get_vocab()
        assert other(texts[0]).input_ids == first(texts[0]).input_ids
    assert first.decode(first(texts[0]).input_ids, skip_special_tokens=True).strip() == texts[0]
    assert len(first.all_special_tokens) == 5
    assert sorted(first.get_vocab().values()) == list(range(len(first)))
