"""Features of a frozen encoder: right for every architecture, kept on disk, made again when anything changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from facts import hftune_error, mentions
from method_case import close, model
from training_case import accuracy, collate, rows

from hftune import methods
from hftune.cache import cache_folder
from hftune.methods.applied import Applied, Precomputed
from hftune.methods.head import HeadMethod
from hftune.pipeline.precompute import precompute
from hftune.progress import ProgressReporter
from hftune.training.inputs import TrainingInputs

pytestmark = pytest.mark.numeric


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HFTUNE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def inputs(seed: int = 1) -> TrainingInputs:
    train, validation = rows(9, seed), rows(5, 2)
    return TrainingInputs(
        train=train,
        validation=validation,
        collator=collate,
        train_lengths=[len(row["input_ids"]) for row in train],
        validation_lengths=[len(row["input_ids"]) for row in validation],
        compute_metrics=accuracy,
        loss=None,
    )


def run(applied: Applied, given: TrainingInputs) -> TrainingInputs:
    return precompute(given, applied, use_cpu=True, batch_size=4, progress=ProgressReporter())[0]


def without_encoder(applied: Applied) -> Applied:
    """The check on one batch may encode; a whole split may not."""
    parts = applied.precomputed
    assert parts is not None
    calls = []

    def encode(batch: Any) -> torch.Tensor:
        calls.append(1)
        assert len(calls) == 1, "the encoder ran again"
        return parts.encode(batch)

    return replace(applied, precomputed=Precomputed(parts.trained, encode))


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "distilbert", "deberta-v2", "modernbert"])
def test_features_stand_for_the_rows(kind: str) -> None:
    applied = methods.apply(model(kind), HeadMethod(), ())
    given = inputs()
    made = run(applied, given)
    applied.model.eval()
    applied.trained.eval()
    with torch.no_grad():
        batch = {name: value for name, value in collate(given.train).items() if name != "labels"}
        whole = applied.model(**batch).logits
        stacked = made.collator([made.train[index] for index in range(9)])
        assert stacked["labels"].tolist() == [row["labels"] for row in given.train]
        ahead = applied.trained(inputs_embeds=stacked["inputs_embeds"]).logits
    assert close(whole, ahead)
    assert applied.trained.main_input_name not in stacked, "Trainer would count the arithmetic of the whole encoder"
    assert (whole - whole[0]).abs().max() > 1e-3


def test_mean_pooling() -> None:
    applied = methods.apply(model("modernbert", classifier_pooling="mean"), HeadMethod(), ())
    assert run(applied, inputs()).train[0]["inputs_embeds"].shape == (1, 16)


def test_the_encoder_runs_without_dropout_while_the_head_has_its_own() -> None:
    applied = methods.apply(model("bert", hidden_dropout_prob=0.5), HeadMethod(cache_features=False), ())
    seen = []
    applied.model.base_model.register_forward_hook(lambda module, _, output: seen.append(output.pooler_output))
    batch = collate(rows(4, 1))
    applied.model.train()
    first, second = (applied.model(**batch).logits for _ in range(2))
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(first, second)


def test_features_are_kept_and_found_again(cache: Path) -> None:
    assert cache_folder("features") == cache / "features"
    first = run(methods.apply(model("bert"), HeadMethod(), ()), inputs())
    files = sorted(cache_folder("features").iterdir())
    assert len(files) == 2
    again = run(without_encoder(methods.apply(model("bert"), HeadMethod(), ())), inputs())
    assert torch.equal(again.train.features, first.train.features)
    assert sorted(cache_folder("features").iterdir()) == files


def test_other_weights_or_rows_make_other_features() -> None:
    run(methods.apply(model("bert"), HeadMethod(), ()), inputs())
    run(methods.apply(model("bert"), HeadMethod(), ()), inputs(seed=5))
    assert len(list(cache_folder("features").iterdir())) == 3  # validation is the same
    other = model("bert")
    with torch.no_grad():
        other.bert.embeddings.word_embeddings.weight[9, 0] += 1e-3
    run(methods.apply(other, HeadMethod(), ()), inputs())
    assert len(list(cache_folder("features").iterdir())) == 5


def test_a_broken_file_is_made_again(caplog: pytest.LogCaptureFixture) -> None:
    first = run(methods.apply(model("bert"), HeadMethod(), ()), inputs())
    for path in cache_folder("features").glob("*/features"):
        path.write_bytes(path.read_bytes()[:20])
    again = run(methods.apply(model("bert"), HeadMethod(), ()), inputs())
    assert torch.equal(again.train.features, first.train.features)
    assert "computed again" in caplog.text


def test_a_cache_that_takes_nothing_costs_only_time(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.write_text("a file where the folder should be", encoding="utf-8")
    assert run(methods.apply(model("bert"), HeadMethod(), ()), inputs()).train.features.shape == (9, 16)
    assert mentions(caplog.text, "not cached")


def test_a_head_that_reads_more_is_refused() -> None:
    applied = methods.apply(model("bert"), HeadMethod(), ())
    parts = applied.precomputed
    assert parts is not None
    wrong = replace(applied, precomputed=Precomputed(parts.trained, lambda batch: parts.encode(batch) * 2))
    with hftune_error("more than one vector") as caught:
        run(wrong, inputs())
    assert "method.cache_features=false" in caught.value.hint


def test_nothing_is_kept_when_part_of_the_encoder_learns() -> None:
    assert methods.apply(model("bert"), HeadMethod(), ("bert.pooler.dense",)).precomputed is not None
    assert methods.apply(model("bert"), HeadMethod(), ("bert.encoder.layer.1.output",)).precomputed is None
