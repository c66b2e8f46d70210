"""logit-bias: An API that returns only the two highest probabilities and accepts a logit bias reveals the model's
whole distribution in V calls, one per token of the vocabulary.

The API returns the two most probable tokens for a prompt with their probabilities, and lets the caller add a bias to
any logit. One call without bias returns the best token, a. For every other token i, one call with bias B on i alone
makes i one of the two best (any B that lifts it above the second best). Both are divided by the same sum, so

    p'_i / p'_a = e^B p_i / p_a,    log p_i − log p_a = log p'_i − log p'_a − B

which, over all i, is the distribution up to a constant, and probabilities add up to 1. That is V calls for V tokens,
1 + (V − 1). A large B costs no precision, because floating-point numbers are as precise near zero as near one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from hftune.config.section import Section
from hftune.lab.experiment import Drawing, Experiment, Numbers, short
from hftune.lab.small_model import small_model
from hftune.runs.figures import BLUE, MUTED, legend, new_figure, style

PROMPT_LENGTH = 40


class LogitBiasSettings(Section):
    """The model behind the API, and the bias."""

    steps: int = Field(200, ge=0)
    """Training steps of the model; 0 for a random one."""
    length: int = Field(128, ge=64, le=512)
    """Context length of the model."""
    bias: float = Field(40.0, gt=0, le=80)
    """Bias B on one logit: more than the largest difference of two logits, less than single precision can represent."""


class TwoBest:
    """An API that counts its calls: takes a logit bias and returns two tokens with their probabilities."""

    def __init__(self, model: Any, prompt: Tensor) -> None:
        self.calls = 0
        self._model, self._prompt = model, prompt

    def __call__(self, bias: dict[int, float]) -> list[tuple[int, float]]:
        """The two most probable next tokens, the best first."""
        self.calls += 1
        with torch.no_grad():
            logits = self._model(input_ids=self._prompt[None], use_cache=False).logits[0, -1]
        for token, amount in bias.items():
            logits[token] += amount
        best = logits.softmax(dim=-1).topk(2)
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))


def recover(ask: TwoBest, vocabulary: int, bias: float) -> list[float] | None:
    """Log probabilities of all tokens, from calls alone; None if a token could not be lifted into the two best."""
    (best, _), _ = ask({})
    relative = [0.0] * vocabulary
    for token in range(vocabulary):
        if token == best:
            continue
        seen = dict(ask({token: bias}))
        if token not in seen or best not in seen or not min(seen.values()):
            return None
        relative[token] = math.log(seen[token]) - math.log(seen[best]) - bias
    total = math.log(sum(math.exp(value) for value in relative))
    return [value - total for value in relative]


def measure(settings: LogitBiasSettings, seed: int) -> Numbers:
    """The recovered and the true distribution, and the number of calls."""
    made = small_model(settings.steps, settings.length, seed)
    prompt = made.unseen[:PROMPT_LENGTH]
    with torch.no_grad():
        logits = made.model(input_ids=prompt[None], use_cache=False).logits[0, -1].double()
    exact = logits.log_softmax(dim=-1).tolist()
    ask = TwoBest(made.model, prompt)
    found = recover(ask, len(exact), settings.bias)
    pairs = [] if found is None else list(zip(found, exact, strict=True))
    likeliest = max(range(len(exact)), key=exact.__getitem__)
    return {
        "vocabulary": len(exact),
        "calls": ask.calls,
        "complete": found is not None,
        "true": exact,
        "recovered": found,
        "greatest_error": max((abs(one - other) for one, other in pairs), default=None),
        "divergence": sum(math.exp(other) * (other - one) for one, other in pairs) if pairs else None,
        "least_probability": math.exp(min(exact)),
        "prompt": made.tokenizer.decode(prompt),
        "likeliest": made.tokenizer.decode([likeliest]),
        "likeliest_probability": math.exp(exact[likeliest]),
    }


def statements(numbers: Numbers) -> dict[str, bool]:
    """The whole distribution is recovered, with one call per token."""
    error = numbers["greatest_error"]
    return {
        "every token could be brought among the two best": numbers["complete"],
        "exactly V calls, one per token": numbers["calls"] == numbers["vocabulary"],
        "every log probability is right to 3 digits": error is not None and error < 1e-3,
        "the probabilities add up to 1": numbers["recovered"] is not None
        and math.isclose(sum(map(math.exp, numbers["recovered"])), 1, rel_tol=1e-9),
    }


def draw(numbers: Numbers) -> Drawing:
    """Recovered against true log probability."""
    figure = new_figure()
    axes = figure.subplots()
    style(axes, "true log probability", "recovered")
    ends = [min(numbers["true"]), max(numbers["true"])]
    axes.plot(ends, ends, color=MUTED, linewidth=1, linestyle=(0, (2, 2)), label="equal")
    if numbers["recovered"] is not None:
        axes.plot(numbers["true"], numbers["recovered"], "o", markersize=4, color=BLUE, label="one token")
    legend(axes)
    return Drawing(
        figure,
        alt=f"Recovered against true log probability of {numbers['vocabulary']} tokens: "
        + ("all points are on the diagonal." if numbers["recovered"] is not None else "nothing could be recovered."),
        caption=f"All {numbers['vocabulary']} tokens, from {numbers['calls']} calls that return two tokens each",
    )


def rows(numbers: Numbers) -> list[tuple[str, str]]:
    """Calls and errors."""
    return [
        ("tokens in the vocabulary", str(numbers["vocabulary"])),
        ("calls", str(numbers["calls"])),
        ("largest error of a log probability", _or_none(numbers["greatest_error"])),
        ("divergence from the true distribution", _or_none(numbers["divergence"])),
        ("probability of the least likely token", short(numbers["least_probability"], 2)),
        ("most likely next token", f"{numbers['likeliest']!r}, {numbers['likeliest_probability']:.2f}"),
    ]


def _or_none(value: float | None) -> str:
    return "none" if value is None else short(value, 2)


QUESTIONS = (
    "Each call returns two probabilities, and one ratio is used. How could half the calls be enough?",
    "What would change if the API rounded probabilities to four digits, and which bias would then be best?",
    "How can the output layer of a model be computed from many such distributions, and what bounds its rank?",
)
EXPERIMENT = Experiment(__doc__, LogitBiasSettings, measure, statements, draw, rows, QUESTIONS)
