"""Tokenizers of scratch models: the same texts give the same ids, or a resumed run would mix up its embeddings."""

from __future__ import annotations

import pytest
from facts import facts, hftune_error
from tiny import rows

from hftune.errors import HftuneError
from hftune.models.load import PRESETS, preset, refuse_other_head
from hftune.models.settings import ModelSection
from hftune.recipe import load_recipe


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("vocab_size", [90, 300], ids=["cut-off", "all-pieces"])
def test_the_same_texts_give_the_same_ids(name: str, vocab_size: int) -> None:
    texts = [text for _, text in rows(60, seed=3)]
    if name in ("gpt2-tiny", "roberta-tiny"):
        vocab_size += 261  # a token for each byte, and special tokens
    first, *others = (PRESETS[name].train_tokenizer(iter(texts), vocab_size) for _ in range(4))
    for other in others:
        assert other.get_vocab() == first.get_vocab()
        assert other(texts[0]).input_ids == first(texts[0]).input_ids
    assert first.decode(first(texts[0]).input_ids, skip_special_tokens=True).strip() == texts[0]
    special = {"gpt2-tiny": 2, "mingpt": 3, "mingpt-tiny": 3}
    assert len(first.all_special_tokens) == special.get(name, 5)
    assert sorted(first.get_vocab().values()) == list(range(len(first)))


def test_a_new_mingpt_has_the_shape_that_is_requested() -> None:
    section = ModelSection(
        model_name_or_path="scratch:mingpt",
        attention="rope",
        num_hidden_layers=2,
        num_attention_heads=2,
        hidden_size=32,
        block_size=64,
    )
    tokenizer = preset(section).train_tokenizer(["Zoë was born in Åbo ."], section.vocab_size)
    config = preset(section).build_config(tokenizer)
    assert (config.attention, config.num_hidden_layers, config.num_attention_heads) == ("rope", 2, 2)
    assert (config.hidden_size, config.block_size, config.vocab_size) == (32, 64, len(tokenizer))
    assert tokenizer.model_max_length == 64
    assert tokenizer.decode(tokenizer("Where was Zoë born?").input_ids) == "Where was Zoë born?", "any typeable text"
    default = preset(ModelSection(model_name_or_path="scratch:mingpt")).build_config(tokenizer)
    assert (default.num_hidden_layers, default.num_attention_heads, default.hidden_size) == (4, 8, 256)
    with hftune_error("model.hidden_size", 32, "5 heads"):
        preset(section.model_copy(update={"num_attention_heads": 5})).build_config(tokenizer)


def test_shapes_and_heads_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=facts("scratch:bert-tiny", "block_size", "num_hidden_layers")):
        ModelSection(model_name_or_path="scratch:bert-tiny", num_hidden_layers=2, block_size=64)
    with hftune_error("characters", "model.tokenizer_type=bpe"):
        load_recipe(None, {"model.model_name_or_path": "scratch:mingpt-tiny", "model.vocab_size": 500}, task="span")
    with pytest.raises(HftuneError, match="needs an encoder") as caught:
        refuse_other_head(ModelSection(model_name_or_path="scratch:mingpt"), causal=False)
    assert "scratch:bert-tiny" in caught.value.hint
    refuse_other_head(ModelSection(model_name_or_path="scratch:mingpt"), causal=True)
