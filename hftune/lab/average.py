"""average: q = β(k_a + k_b) over orthonormal keys gives ½(v_a + v_b), and a projection recovers v_a from the average
if the two values are in orthogonal subspaces.

Keys are orthonormal and q = β(k_a + k_b), so that two logits are β and the others 0:

    w_a = w_b = e^β / (2 e^β + n − 2),    c → ½(v_a + v_b)    as β grows

Let v_a be in the span of the orthonormal columns of A, and v_b in that of B. If the two subspaces are orthogonal,
AᵀB = 0, the projection onto the first removes v_b:

    2 A Aᵀ c → A Aᵀ v_a + A Aᵀ v_b = v_a + 0

If B is tilted towards A, with cosine t for every direction, the error is |A Aᵀ v_b| = t |v_b|, for any β.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from pydantic import Field, model_validator

from hftune.lab.experiment import Drawing, Experiment, KeySettings, Numbers, Scales, chart, equal, falling, short
from hftune.lab.vectors import attend, gaussian, generator, orthonormal
from hftune.runs.figures import BLUE, GREEN, ORANGE, Line


class AverageSettings(KeySettings):
    """Keys, values, the lengths of the query, and the tilt of the second subspace."""

    scales: Scales = (0.5, 1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20)
    """Scales β of the query, growing."""
    subspace: int = Field(4, ge=1)
    """Dimension of the subspace of each of the two values; twice that must fit into ``dimension``."""
    lean: float = Field(0.3, gt=0, lt=1)
    """Cosine between the two subspaces in the case that they are not orthogonal."""

    @model_validator(mode="after")
    def _room_for_two(self) -> Self:
        if 2 * self.subspace > self.dimension:
            raise ValueError(f"two subspaces of {self.subspace} dimensions can't be orthogonal in {self.dimension}")
        return self


def measure(settings: AverageSettings, seed: int) -> Numbers:
    """Distance of the output from the average, and of its projection from v_a, for each β."""
    source = generator(seed)
    keys = orthonormal(settings.keys, settings.dimension, source)
    bases = orthonormal(2 * settings.subspace, settings.dimension, source)
    first, second = bases[: settings.subspace], bases[settings.subspace :]  # rows: Aᵀ and Bᵀ
    leaning = settings.lean * first + math.sqrt(1 - settings.lean**2) * second
    values = gaussian(settings.keys, settings.dimension, source=source)
    inside = gaussian(2, settings.subspace, source=source)
    values[0] = inside[0] @ first
    queries = torch.tensor(settings.scales, dtype=keys.dtype)[:, None] * (keys[0] + keys[1])
    found: Numbers = {"scales": list(settings.scales)}
    for name, basis in (("orthogonal", second), ("leaning", leaning)):
        values[1] = inside[1] @ basis
        output = attend(queries, keys, values)  # [β, d]
        recovered = 2 * output @ first.T @ first
        found[name] = {
            "average_error": (output - values[:2].mean(dim=0)).norm(dim=1).tolist(),
            "recovery_error": (recovered - values[0]).norm(dim=1).tolist(),
        }
    far = float((values[2:].mean(dim=0) - values[:2].mean(dim=0)).norm())
    others = settings.keys - 2
    found["leaning"]["closed_form"] = [others / (2 * math.exp(beta) + others) * far for beta in settings.scales]
    found["left_over"] = settings.lean * float(values[1].norm())
    return found


def statements(numbers: Numbers) -> dict[str, bool]:
    """The average is reached, v_a is recovered, and tilted subspaces leave the predicted error."""
    right, leaning = numbers["orthogonal"], numbers["leaning"]
    return {
        "the output approaches the average as β grows": falling(right["average_error"]),
        "its distance is the closed form": equal(leaning["average_error"], leaning["closed_form"]),
        "the greatest β gives the average to 6 digits": right["average_error"][-1] < 1e-6,
        "the projection recovers v_a to 6 digits": right["recovery_error"][-1] < 1e-6,
        "tilted subspaces leave an error of cosine times |v_b|": math.isclose(
            leaning["recovery_error"][-1], numbers["left_over"], rel_tol=1e-4
        ),
    }


def draw(numbers: Numbers) -> Drawing:
    """Both errors against β."""
    x = numbers["scales"]
    lines = [
        Line("average", x, numbers["orthogonal"]["average_error"], BLUE, "o"),
        Line("v_a recovered", x, numbers["orthogonal"]["recovery_error"], GREEN, "^"),
        Line("tilted", x, numbers["leaning"]["recovery_error"], ORANGE, "s"),
    ]
    left = short(numbers["left_over"], 2)
    return Drawing(
        chart(lines, x_label="scale β of the query", y_label="distance from the target", log_y=True),
        alt="Distances against β: average and recovered value fall exponentially; with tilted subspaces the recovered "
        f"value stays {left} away.",
        caption="v_a is recovered as exactly as the average, unless the other subspace is tilted towards its own",
    )


def rows(numbers: Numbers) -> list[tuple[str, str]]:
    """At the greatest β."""
    last = short(numbers["scales"][-1])
    return [
        (f"distance from ½(v_a + v_b), β = {last}", short(numbers["orthogonal"]["average_error"][-1])),
        (f"distance of 2AAᵀc from v_a, β = {last}", short(numbers["orthogonal"]["recovery_error"][-1])),
        ("the same, tilted subspaces", short(numbers["leaning"]["recovery_error"][-1])),
        ("cosine times |v_b|", short(numbers["left_over"])),
    ]


QUESTIONS = (
    "Which query gives ¾v_a + ¼v_b? Does its answer depend on β?",
    "How many values can one query average so that each can still be recovered, in d dimensions?",
    "The recovered value must be doubled. What would a layer have to know to do so for any number of values?",
)
EXPERIMENT = Experiment(__doc__, AverageSettings, measure, statements, draw, rows, QUESTIONS)
