"""What the run cost: weights that moved, time, speed, bytes."""

from __future__ import annotations

from hftune.runs.facts import RunFacts
from hftune.runs.page import Section
from hftune.runs.wording import duration, number, percent, size


def cost(facts: RunFacts) -> Section | None:
    """Parameters and cost as pairs of name and value."""
    parameters, speed = facts.metrics.get("parameters", {}), facts.metrics.get("speed", {})
    pairs: list[tuple[str, str]] = []
    if parameters.get("total"):
        share = percent(parameters["trainable"] / parameters["total"])
        pairs.append(("Trainable parameters", f"{parameters['trainable']:,} of {parameters['total']:,} ({share})"))
    if parameters.get("formula"):
        pairs.append(("Trainable, as a formula", str(parameters["formula"])))
    if speed.get("train_seconds") is not None:
        pairs.append(("Training time, with evaluations and saves", duration(float(speed["train_seconds"]))))
    if speed.get("ahead_seconds") is not None:
        pairs.append(("Encoding once, before training", duration(float(speed["ahead_seconds"]))))
    known = {"train_seconds", "ahead_seconds"}
    for key, name, unit in (
        ("examples_per_second", "Speed of updates alone", "examples a second"),
        ("tokens_per_second", "Token speed", "tokens a second"),
    ):
        known.add(key)
        if speed.get(key) is not None:
            pairs.append((name, f"{speed[key]:,.0f} {unit}"))
    if speed.get("mfu") is not None:
        pairs.append(("Use of the hardware's peak (MFU)", percent(float(speed["mfu"]))))
    if speed.get("peak_memory_gb") is not None:
        pairs.append(("Peak memory", f"{speed['peak_memory_gb']:.2f} GB"))
    known |= {"mfu", "peak_memory_gb"}
    for key, value in speed.items():
        if key not in known and isinstance(value, int | float):
            pairs.append((key.replace("_", " ").capitalize(), number(value)))
    if facts.model_bytes:
        pairs.append(("Saved model", size(facts.model_bytes)))
    if not pairs:
        return None
    return Section(id="cost", title="Cost", template="pairs.html.j2", values={"pairs": pairs})
