"""A cache with room: whatever is done to it, it holds what transformers' own would hold."""

from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from hftune.models.decoding import PreallocatedLayer, preallocate

pytestmark = pytest.mark.numeric


def parts(tokens: int, rows: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 2, tokens, 4), torch.randn(rows, 2, tokens, 4)


def assert_same(ours: PreallocatedLayer, theirs: DynamicLayer) -> None:
    assert torch.equal(ours.keys, theirs.keys) and torch.equal(ours.values, theirs.values)
    assert ours.get_seq_length() == theirs.get_seq_length()


def test_it_grows_shrinks_and_selects_as_the_plain_one_does() -> None:
    torch.manual_seed(0)
    ours, theirs = PreallocatedLayer(capacity=6), DynamicLayer()
    for tokens in (4, 1, 1, 1, 2):  # beyond its room, too
        given = parts(tokens)
        for layer in (ours, theirs):
            layer.update(*given)
        assert_same(ours, theirs)
    for layer in (ours, theirs):
        layer.batch_select_indices(torch.tensor([2, 0]))
    given = parts(1, rows=2)
    for layer in (ours, theirs):
        layer.update(*given)
    assert_same(ours, theirs)
    for layer in (ours, theirs):
        layer.crop(-3)
        layer.reorder_cache(torch.tensor([1, 0]))
        layer.update(*given)
    assert_same(ours, theirs)


def test_old_tokens_stay_where_they_are() -> None:
    layer = PreallocatedLayer(capacity=8)
    layer.update(*parts(4))
    place = layer.keys.data_ptr()
    for _ in range(4):
        layer.update(*parts(1))
    assert layer.keys.data_ptr() == place


def test_only_plain_layers_that_hold_something_get_room() -> None:
    cache = DynamicCache(config=GPT2Config(n_layer=2))
    given = parts(3)
    cache.update(*given, 0)
    preallocate(cache, 8)
    assert [type(layer) for layer in cache.layers] == [PreallocatedLayer, DynamicLayer]
    more = parts(1)
    keys, values = cache.update(*more, 0)
    assert torch.equal(keys, torch.cat([given[0], more[0]], dim=2))
    assert torch.equal(values, torch.cat([given[1], more[1]], dim=2))
    sliding = Cache(layers=[DynamicSlidingWindowLayer(sliding_window=2)])
    preallocate(sliding, 8)
    preallocate(None, 8)
    assert type(sliding.layers[0]) is DynamicSlidingWindowLayer
