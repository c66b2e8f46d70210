"""key-query-value: With x_1 = u_d + u_b, x_2 = u_a, x_3 = u_c + u_b and no K, Q, V, c_2 is x_2 and adding u_c or u_d
does not make it u_b; K, Q, V from outer products give c_2 ≈ u_b and c_1 ≈ u_b − u_c.

u_a, u_b, u_c, u_d are orthogonal, each of length β, and the inputs are

    x_1 = u_d + u_b,    x_2 = u_a,    x_3 = u_c + u_b

Without matrices each x is key, query and value. The logits of x_2 are (0, β², 0), so that c_2 ≈ x_2 = u_a. Adding
u_d, u_c or both to x_2 raises x_2·x_1 or x_2·x_3 to β², but x_2·x_2 to 2β² or 3β²: among vectors
that are not longer, a vector is always most similar to itself, so that again c_2 ≈ x_2, which has no part of u_b.

With matrices, key, query and value of one input can differ. Since u_i u_jᵀ / β² turns u_j into u_i:

    V = (u_b u_bᵀ − u_c u_cᵀ) / β²     v_1 = u_b,  v_2 = 0,  v_3 = u_b − u_c
    K = I                              k_i = x_i
    Q = (u_d u_aᵀ + u_c u_dᵀ) / β²     q_2 = u_d, which is similar only to k_1;  q_1 = u_c, similar only to k_3

so that c_2 ≈ v_1 = u_b and c_1 ≈ v_3 = u_b − u_c, both with weight e^(β²) / (e^(β²) + 2).
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import AfterValidator, Field

from hftune.config.section import Section
from hftune.lab.experiment import Drawing, Experiment, Numbers, chart, equal, falling, growing, short
from hftune.lab.vectors import attend, generator, orthonormal
from hftune.runs.figures import BLUE, GREEN, ORANGE, Line

Length = Annotated[float, Field(gt=0, le=20)]
"""The square of a length is a logit."""


class KeyQueryValueSettings(Section):
    """Width and lengths of the vectors."""

    dimension: int = Field(8, ge=4)
    """Width of the vectors; four of them are orthogonal."""
    lengths: Annotated[tuple[Length, ...], AfterValidator(growing)] = Field(
        (0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4), min_length=2
    )
    """Lengths β of the vectors, growing."""


def measure(settings: KeyQueryValueSettings, seed: int) -> Numbers:
    """For each β the outputs with and without matrices, compared with the targets, in units of β."""
    units = orthonormal(4, settings.dimension, generator(seed))
    plain: dict[str, list[float]] = {"u_a": [], "u_a + u_d": [], "u_a + u_c": [], "u_a + u_c + u_d": []}
    own: dict[str, list[float]] = {name: [] for name in plain}
    wanted: dict[str, list[float]] = {"c_2": [], "c_1": []}
    for beta in settings.lengths:
        a, b, c, d = beta * units
        for name, second in (("u_a", a), ("u_a + u_d", a + d), ("u_a + u_c", a + c), ("u_a + u_c + u_d", a + c + d)):
            x = torch.stack([d + b, second, c + b])
            output = attend(x, x, x)[1]
            plain[name].append(float((output - b).norm() / beta))
            own[name].append(float((output - second).norm() / beta))
        x = torch.stack([d + b, a, c + b])
        value = (torch.outer(b, b) - torch.outer(c, c)) / beta**2
        query = (torch.outer(d, a) + torch.outer(c, d)) / beta**2
        outputs = attend(x @ query.T, x, x @ value.T)
        wanted["c_2"].append(float((outputs[1] - b).norm() / beta))
        wanted["c_1"].append(float((outputs[0] - (b - c)).norm() / beta))
    rest = [1 / (math.exp(beta**2) + 2) for beta in settings.lengths]
    return {
        "lengths": list(settings.lengths),
        "without": plain,
        "without_from_x_2": own,
        "with": wanted,
        # The error of c_2 has one share of v_2 = 0 and one of v_3 = u_b − u_c: −u_b and −u_c.
        "closed_form_c_2": [share * math.sqrt(2) for share in rest],
    }


def statements(numbers: Numbers) -> dict[str, bool]:
    """Without matrices no choice of x_2 gives u_b; with them it is reached."""
    return {
        "without K, Q, V every choice of x_2 stays at least a length of u_b away": all(
            errors[-1] > 1 for errors in numbers["without"].values()
        ),
        "without K, Q, V c_2 is x_2 to 5 digits, for every choice": all(
            errors[-1] < 1e-5 for errors in numbers["without_from_x_2"].values()
        ),
        "with K, Q, V c_2 approaches u_b as β grows": falling(numbers["with"]["c_2"]),
        "the error of c_2 is the closed form": equal(numbers["with"]["c_2"], numbers["closed_form_c_2"]),
        "c_2 is u_b to 5 digits": numbers["with"]["c_2"][-1] < 1e-5,
        "c_1 is u_b − u_c to 5 digits": numbers["with"]["c_1"][-1] < 1e-5,
    }


def draw(numbers: Numbers) -> Drawing:
    """Distances against β."""
    x = numbers["lengths"]
    nearest = [min(at) for at in zip(*numbers["without"].values(), strict=True)]
    lines = [
        Line("no K, Q, V", x, nearest, ORANGE, "s"),
        Line("c_2 to u_b", x, numbers["with"]["c_2"], BLUE, "o"),
        Line("c_1 to u_b − u_c", x, numbers["with"]["c_1"], GREEN, "^"),
    ]
    return Drawing(
        chart(lines, x_label="length β of the vectors", y_label="distance in units of β", log_y=True),
        alt="Distances against β: without matrices the best choice of x_2 stays about 1.4 away from u_b; with matrices "
        "the error of both outputs falls to zero.",
        caption="Without matrices even the best of four choices of x_2 does not approach u_b",
    )


def rows(numbers: Numbers) -> list[tuple[str, str]]:
    """At the greatest β."""
    beta = short(numbers["lengths"][-1])
    plain = [(f"without, x_2 = {name}: c_2 to u_b", short(at[-1])) for name, at in numbers["without"].items()]
    return [
        *plain,
        (f"with, β = {beta}: c_2 to u_b", short(numbers["with"]["c_2"][-1])),
        (f"with, β = {beta}: c_1 to u_b − u_c", short(numbers["with"]["c_1"][-1])),
    ]


QUESTIONS = (
    "Which input would have to be longer than x_2 for x_2 to attend to another input without matrices?",
    "What does c_3 become with these matrices, and why?",
    "What are the ranks of Q and V, and what would a narrower head lose?",
)
EXPERIMENT = Experiment(__doc__, KeyQueryValueSettings, measure, statements, draw, rows, QUESTIONS)
