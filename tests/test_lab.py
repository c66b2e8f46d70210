"""The attention lab: every claim holds, and every check notices when its claim is broken, in numbers or in code."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lab_results import quick
from torch.nn import functional as F  # noqa: N812

from hftune.lab import (
    argmax,
    bptt,
    complexity,
    low_rank,
    masking,
    multi_head,
    random_features,
    single_head,
)
from hftune.lab.experiment import Numbers
from hftune.lab.logit_bias import TwoBest, recover
from hftune.lab.run import EXPERIMENTS, run, select
from hftune.lab.small_model import small_model
from hftune.models.mingpt import ATTENTION

NAMES = list(EXPERIMENTS)
TRAINED = ("low-rank", "logit-bias")


def test_the_table_holds_them_all_under_their_names() -> None:
    assert len(EXPERIMENTS) >= 13
    assert all(experiment.name == name for name, experiment in EXPERIMENTS.items())


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_is_whole(name: str) -> None:
    experiment = EXPERIMENTS[name]
    assert experiment.claim.endswith(".")
    assert experiment.docstring.startswith(f"{name}: ") and "\n\n    " in experiment.docstring
    assert len(experiment.questions) >= 3 and all("?" in question for question in experiment.questions)
    assert all(field.description for field in experiment.settings.model_fields.values())


@pytest.mark.parametrize("name", [name for name in NAMES if name != "complexity"])
def test_the_claim_holds(name: str) -> None:
    result = quick(name)
    assert result.violated == ()
    assert json.loads(json.dumps(result.numbers, allow_nan=False)) == result.numbers
    rows = result.experiment.rows(result.numbers)
    assert len(rows) >= 4 and all(isinstance(text, str) and text for row in rows for text in row)


def test_complexity_covers_every_variant_and_its_memory_is_as_claimed() -> None:
    """Times are measured in ``hftune lab run complexity``; a test can't depend on them. Bytes are the same anywhere."""
    assert set(complexity.TIME_POWER) == set(complexity.MEMORY_POWER) == set(ATTENTION)
    numbers = quick("complexity").numbers
    assert all(second > 0 for seconds in numbers["seconds"].values() for second in seconds)
    assert not [statement for statement in EXPERIMENTS["complexity"].check(numbers) if "memory" in statement]
    ideal = numbers | {"time_power": complexity.TIME_POWER}
    assert EXPERIMENTS["complexity"].check(ideal) == []


@pytest.mark.parametrize("name", ["copy", "single-head", "argmax", "random-features", "bptt"])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_claim_holds_for_other_seeds(name: str, seed: int) -> None:
    experiment = EXPERIMENTS[name]
    assert run(experiment, experiment.settings(), seed).violated == ()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in (*TRAINED, "complexity")])
def test_the_same_seed_gives_the_same_numbers(name: str) -> None:
    torch.manual_seed(99)  # what others draw must not matter
    experiment = EXPERIMENTS[name]
    again = run(experiment, experiment.settings())
    assert again.numbers == quick(name).numbers
    if name != "key-query-value":  # its errors do not depend on which orthogonal vectors are taken
        assert run(experiment, experiment.settings(), 5).numbers != again.numbers


def test_the_same_seed_trains_the_same_model() -> None:
    made = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        small_model.cache_clear()
        made.append(small_model(3, 64, 0))
    first, second = made
    assert first.last_loss == second.last_loss < first.first_loss
    assert all(
        torch.equal(one, other) for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True)
    )
    assert not torch.equal(next(small_model(3, 64, 1).model.parameters()), next(first.model.parameters()))


def changed(numbers: Numbers, path: str, value: Any) -> Numbers:
    """A copy of the numbers with one of them replaced; ``a.b.-1`` enters lists."""
    result = copy.deepcopy(numbers)
    *parents, last = path.split(".")
    place: Any = result
    for part in parents:
        place = place[int(part) if isinstance(place, list) else part]
    key: Any = int(last) if isinstance(place, list) else last
    before = place[key]
    place[key] = value(before) if callable(value) else value
    return result


# What the numbers would be if a claim were false, and the statement that must be among the violated ones.
BROKEN: list[tuple[str, str, Any, str]] = [
    ("copy", "orthonormal.-1", 0.1, "6 digits"),
    ("copy", "orthonormal.3", lambda found: found * 1.001, "closed form"),
    ("copy", "random.2", 1e9, "bound"),
    ("copy", "random.-1", 10.0, "falls"),
    ("average", "orthogonal.average_error.-1", 0.1, "average to 6 digits"),
    ("average", "orthogonal.recovery_error.-1", 0.1, "recovers v_a"),
    ("average", "leaning.recovery_error.-1", 0.0, "leave"),
    ("average", "leaning.closed_form.0", 0.0, "closed form"),
    ("average", "orthogonal.average_error.1", 99.0, "approaches"),
    ("single-head", "still.deviation", 0.3, "near the average"),
    ("single-head", "still.only_a", 0.3, "neither"),
    ("single-head", "stretched.deviation", 0.06, "4 times"),
    ("single-head", "stretched.only_b", 0.0, "both values"),
    ("single-head", "stretched.only_a", 0.05, "most samples"),
    ("single-head", "stretched.one_value_predicted", 0.5, "as predicted"),
    ("single-head", "stretched.mean", 0.8, "one half"),
    ("multi-head", "ratio", 1.1, "half the spread"),
    ("multi-head", "two_heads.-1.near", 0.2, "two heads are near"),
    ("multi-head", "one_head.-1.near", 0.9, "one head is near"),
    ("multi-head", "two_heads.-1.rms", 0.9, "greater β"),
    ("multi-head", "first_head_fails", 0.5, "as predicted"),
    ("key-query-value", "without.u_a.-1", 0.1, "without K, Q, V"),
    ("key-query-value", "without_from_x_2.u_a.-1", 0.1, "c_2 is x_2"),
    ("key-query-value", "with.c_2.-1", 0.1, "5 digits"),
    ("key-query-value", "with.c_1.-1", 0.1, "c_1 is"),
    ("key-query-value", "with.c_2.2", 5.0, "approaches"),
    ("argmax", "hard.distance_from_value", 1e-9, "one of the values"),
    ("argmax", "hard.query_gradient", 1e-9, "to the query"),
    ("argmax", "hard.key_gradient", 1e-9, "to the keys"),
    ("argmax", "hard.moved", 1e-9, "small step"),
    ("argmax", "hard.other_value_gradient", 1e-9, "only the selected"),
    ("argmax", "straight_through.distance_from_hard", 0.1, "same output"),
    ("argmax", "straight_through.query_gradient", 0.0, "gradient of softmax"),
    ("argmax", "soft.distance_from_hard.-1", 0.5, "cold softmax is"),
    ("argmax", "soft.query_gradient.-1", 50.0, "loses"),
    ("scaling", "logit_slope", 0.0, "grows like d"),
    ("scaling", "logit_variance.scaled.-1", 16.0, "stays 1"),
    ("scaling", "gradient_variance.plain.-1", 1.0, "shrinks"),
    ("scaling", "gradient_variance.scaled.-1", 1e-6, "with 1/√d it does not"),
    ("scaling", "gradient_variance.scaled.3", 0.9, "with 1/√d it does not"),
    ("scaling", "greatest_weight.plain.-1", 0.3, "takes nearly all"),
    ("masking", "variants.performer.hidden_weight", 1e-30, "performer: hidden tokens get weight"),
    ("masking", "variants.rope.hidden_gradient", 1e-30, "rope: hidden tokens get gradient"),
    ("masking", "variants.vanilla.visible_gradient", 0.0, "visible"),
    ("masking", "infinite.weight", 1e-30, "−∞"),
    ("masking", "weights.0", 0.0, "leaks"),
    ("masking", "weights.3", lambda found: found * 3, "in proportion"),
    ("complexity", "time_power.vanilla", 1.5, "vanilla: time"),
    ("complexity", "time_power.synthesizer", 2.64, "synthesizer: time"),
    ("complexity", "time_power.linformer", 0.47, "linformer: time"),
    ("complexity", "time_power.performer", 1.4, "performer: time"),
    ("complexity", "time_power", dict.fromkeys(ATTENTION, 1.4), "every quadratic variant"),
    ("complexity", "memory_power.vanilla", 2.0, "vanilla: memory"),
    ("complexity", "memory_power.synthesizer", 1.5, "synthesizer: memory"),
    ("low-rank", "random.singular_values", lambda found: [1.0] * len(found), "random model: close"),
    ("low-rank", "trained.singular_values", lambda found: [1.0] + [0.01] * (len(found) - 1), "raises the rank"),
    ("low-rank", "trained.singular_values", lambda found: [1.0] + [0.0] * (len(found) - 1), "raises the rank"),
    ("low-rank", "sharp.singular_values", lambda found: [1.0] + [0.0] * (len(found) - 1), "sharp"),
    ("low-rank", "trained.output.3", 99.0, "below σ"),
    ("low-rank", "loss", [4.0, 3.9], "reduced the loss"),
    ("low-rank", "without_softmax.chosen.-1", 0.1, "chosen C and D"),
    ("low-rank", "without_softmax.random.-1", 0.0, "random C and D"),
    ("random-features", "positive.-1", 19.0, "a tenth"),
    ("random-features", "positive.-1", 0.6, "half the weight"),
    ("random-features", "negative_share.-1", 0.0, "negative"),
    ("random-features", "trigonometric.0", 99.0, "agree"),
    ("random-features", "trigonometric.5", 99.0, "trigonometric errors"),
    ("random-features", "positive_predicted.-1", 1.0, "positive error"),
    ("random-features", "orthogonal_over_independent.positive", 1.0, "less variance, positive"),
    ("random-features", "orthogonal_over_independent.trigonometric", 1.0, "less variance, trig"),
    ("bptt", "greatest_difference", 1e-3, "autograd"),
    ("bptt", "norm_ratio.0.-1", 1.0, "ρ^T"),
    ("logit-bias", "calls", 500, "V calls"),
    ("logit-bias", "calls", 2, "V calls"),
    ("logit-bias", "greatest_error", 0.1, "3 digits"),
    ("logit-bias", "complete", False, "two best"),
    ("logit-bias", "recovered.0", 3.0, "add up"),
]


@pytest.mark.parametrize(("name", "path", "value", "statement"), BROKEN, ids=[f"{row[0]}-{row[1]}" for row in BROKEN])
def test_a_check_fails_on_numbers_that_break_its_claim(name: str, path: str, value: Any, statement: str) -> None:
    experiment, numbers = EXPERIMENTS[name], quick(name).numbers
    found = experiment.check(changed(numbers, path, value))
    assert [one for one in found if statement in one], found
    # Where the check accepts the true numbers, only the broken one made it fail.
    assert name == "complexity" or experiment.check(numbers) == []


def test_every_experiment_is_broken_somewhere_above() -> None:
    assert {row[0] for row in BROKEN} == set(EXPERIMENTS)


def violated_by(name: str, *sets: str) -> list[str]:
    ((experiment, settings),) = select(name, sets)
    return experiment.check(experiment.measure(settings, 0))


def test_wrong_attention_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The experiments stand on softmax attention: one that forgets to take the exponential breaks them."""
    right: Callable[..., torch.Tensor] = F.scaled_dot_product_attention

    def linear(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float = 1.0, **_: Any
    ) -> torch.Tensor:
        weights = (scale * query @ key.transpose(-1, -2)).abs() + 1e-9
        return weights / weights.sum(-1, keepdim=True) @ value

    monkeypatch.setattr(F, "scaled_dot_product_attention", linear)
    for name in ("copy", "average", "key-query-value", "single-head", "multi-head", "argmax"):
        assert violated_by(name), name
    monkeypatch.setattr(F, "scaled_dot_product_attention", right)
    assert violated_by("copy") == []


def test_a_forgotten_scale_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hftune.lab.scaling.math.sqrt", lambda _: 1.0)
    assert any("stays 1" in statement for statement in violated_by("scaling"))


def test_a_leaking_mask_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Leaking(ATTENTION["vanilla"]):  # type: ignore[misc]
        def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            future = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1)
            mask = torch.zeros(future.shape).masked_fill(future, -20.0)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    monkeypatch.setitem(ATTENTION, "vanilla", Leaking)
    found = EXPERIMENTS["masking"].check(masking.measure(masking.MaskingSettings(), 0))
    assert found == [
        "vanilla: hidden tokens get weight 0, exactly",
        "vanilla: hidden tokens get gradient 0, exactly",
    ]


def test_soft_weights_in_place_of_hard_ones_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(argmax, "_hard_weights", argmax._soft_weights)
    assert len(violated_by("argmax")) >= 4


def test_a_still_key_in_place_of_a_varying_one_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = single_head.draw_keys
    monkeypatch.setattr(single_head, "draw_keys", lambda *given, stretched: right(*given, stretched=False))
    assert any("4 times" in statement for statement in violated_by("single-head"))
    monkeypatch.setattr(multi_head, "draw_keys", single_head.draw_keys)
    assert any("one head is near" in statement for statement in violated_by("multi-head"))


def test_a_quadratic_memory_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Written(ATTENTION["vanilla"]):  # type: ignore[misc]
        def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            future = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
            scores = (q @ k.transpose(-1, -2)).masked_fill(future, -math.inf)
            return scores.softmax(-1) @ v

    monkeypatch.setitem(ATTENTION, "vanilla", Written)
    found = violated_by("complexity", "lengths=[512,2048]", "seconds_each=0.01")
    assert "vanilla: memory grows like length^1, within 0.3" in found


def test_draws_that_are_not_orthogonal_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        random_features, "orthogonal_gaussian", lambda count, size, source: torch.randn(count, size, generator=source)
    )
    assert [statement for statement in violated_by("random-features") if "orthogonal" in statement] != []


def test_a_wrong_power_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = torch.linalg.matrix_power
    monkeypatch.setattr(bptt.torch.linalg, "matrix_power", lambda matrix, power: right(matrix, max(power - 1, 0)))
    assert "the closed form is autograd's gradient, to 10 digits" in violated_by("bptt")


def test_an_untrained_model_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = low_rank.small_model

    def lazy(steps: int, length: int, seed: int) -> Any:
        return right(min(steps, 1), length, seed)

    monkeypatch.setattr(low_rank, "small_model", lazy)
    assert "training reduced the loss" in violated_by("low-rank", "length=96")


class Fixed:
    """A model whose next logits are given."""

    def __init__(self, logits: list[float]) -> None:
        self.logits = torch.tensor(logits)

    def __call__(self, **_: Any) -> Any:
        return type("Output", (), {"logits": self.logits.clone()[None, None]})


def test_the_distribution_is_recovered_from_two_probabilities_a_call() -> None:
    logits = [2.0, -7.0, 5.0, 4.999, 0.0, -20.0]
    ask = TwoBest(Fixed(logits), torch.zeros(1, dtype=torch.long))
    found = recover(ask, len(logits), bias=40.0)
    assert found is not None and ask.calls == len(logits)
    exact = torch.tensor(logits, dtype=torch.float64).log_softmax(0)
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), exact, atol=1e-5, rtol=0)


def test_a_bias_that_lifts_too_little_is_reported_and_not_guessed() -> None:
    ask = TwoBest(Fixed([2.0, -7.0, 5.0, 4.999]), torch.zeros(1, dtype=torch.long))
    assert recover(ask, 4, bias=1.0) is None
    assert "every token could be brought among the two best" in violated_by("logit-bias", "steps=0", "bias=0.001")
