"""key-query-value: what self-attention can't do without matrices, and what three sums of outer products give it.

u_a, u_b, u_c, u_d are orthogonal, each of length β, and the inputs are

    x_1 = u_d + u_b,    x_2 = u_a,    x_3 = u_c + u_b

Without matrices each x is key, query and value. The logits of x_2 are (0, β², 0), so that c_2 ≈ x_2 = u_a. Adding
u_d, u_c or both to x_2 raises x_2·x_1 or x_2·x_3 to β², but x_2·x_2 to 2β² or 3β²: a vector is always most like
itself among vectors no longer than it, so that c_2 ≈ x_2 again, in which there is no u_b.

With matrices, key, query and value of one input can differ. Since u_i u_jᵀ / β² turns u_j into u_i:

    V = (u_b u_bᵀ − u_c u_cᵀ) / β²     v_1 = u_b,  v_2 = 0,  v_3 = u_b − u_c
    K = I                              k_i = x_i
    Q = (u_d u_aᵀ + u_c u_dᵀ) / β²     q_2 = u_d, which is like k_1 only;  q_1 = u_c, which is like k_3 only

so that c_2 ≈ v_1 = u_b and c_1 ≈ v_3 = u_b − u_c, both with weight e^(β²) / (e^(β²) + 2).
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import AfterValidator, Field
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from hftune.config.section import Section
from hftune.lab.experiment import Drawing, Experiment, Numbers, chart, equal, falling, short, violated
from hftune.lab.series import growing
from hftune.lab.vectors import generator, orthonormal
from hftune.runs.figures import BLUE, GREEN, ORANGE, Line

Length = Annotated[float, Field(gt=0, le=20)]
"""Its square is a logit."""


class KeyQueryValueSettings(Section):
    """Width and lengths of the vectors."""

    dimension: int = Field(8, ge=4)
    """Width of the vectors; four of them are orthogonal."""
    lengths: Annotated[tuple[Length, ...], AfterValidator(growing)] = Field(
        (0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4), min_length=2
    )
    """Lengths β of the vectors, growing."""


def measure(settings: KeyQueryValueSettings, seed: int) -> Numbers:
    """For each β the outputs with and without matrices, compared with what was wanted, in units of β."""
    units = orthonormal(4, settings.dimension, generator(seed))
    plain: dict[str, list[float]] = {"u_a": [], "u_a + u_d": [], "u_a + u_c": [], "u_a + u_c + u_d": []}
    wanted: dict[str, list[float]] = {"c_2": [], "c_1": []}
    for beta in settings.lengths:
        a, b, c, d = beta * units
        for name, second in (("u_a", a), ("u_a + u_d", a + d), ("u_a + u_c", a + c), ("u_a + u_c + u_d", a + c + d)):
            x = torch.stack([d + b, second, c + b])
            plain[name].append(float((_attend(x, x, x)[1] - b).norm() / beta))
        x = torch.stack([d + b, a, c + b])
        value = (torch.outer(b, b) - torch.outer(c, c)) / beta**2
        query = (torch.outer(d, a) + torch.outer(c, d)) / beta**2
        outputs = _attend(x @ query.T, x, x @ value.T)
        wanted["c_2"].append(float((outputs[1] - b).norm() / beta))
        wanted["c_1"].append(float((outputs[0] - (b - c)).norm() / beta))
    rest = [1 / (math.exp(beta**2) + 2) for beta in settings.lengths]
    return {
        "lengths": list(settings.lengths),
        "without": plain,
        "with": wanted,
        # c_2 misses u_b by one share of v_2 = 0 and one of v_3 = u_b − u_c; the two miss by −u_b and −u_c.
        "closed_form_c_2": [share * math.sqrt(2) for share in rest],
    }


def _attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(queries[None], keys[None], values[None], scale=1.0)[0]


def check(numbers: Numbers) -> list[str]:
    """Without matrices u_b is out of reach for every choice of x_2; with them it is reached."""
    return violated(
        {
            "without K, Q, V no choice of x_2 comes nearer to u_b than its own length": all(
                errors[-1] > 1 for errors in numbers["without"].values()
            ),
            "with K, Q, V c_2 nears u_b with every greater β": falling(numbers["with"]["c_2"]),
            "c_2 misses u_b by the closed form": equal(numbers["with"]["c_2"], numbers["closed_form_c_2"]),
            "c_2 is u_b to 5 digits": numbers["with"]["c_2"][-1] < 1e-5,
            "c_1 is u_b − u_c to 5 digits": numbers["with"]["c_1"][-1] < 1e-5,
        }
    )


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
        "both outputs come as near as wanted.",
        caption="Without matrices: the best of four choices of x_2, and it does not come near",
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


EXPERIMENT = Experiment(
    name="key-query-value",
    claim="With x_1 = u_d + u_b, x_2 = u_a, x_3 = u_c + u_b and no K, Q, V, c_2 is x_2 and adding u_c or u_d can't "
    "make it u_b; K, Q, V made of outer products give c_2 ≈ u_b and c_1 ≈ u_b − u_c.",
    mathematics=__doc__,
    settings=KeyQueryValueSettings,
    measure=measure,
    check=check,
    draw=draw,
    rows=rows,
    questions=(
        "Which input would have to be longer than x_2 for x_2 to look away from itself without matrices?",
        "What does c_3 become with these matrices, and why?",
        "Of what rank are Q and V, and what would a head that is narrower than that lose?",
    ),
)
