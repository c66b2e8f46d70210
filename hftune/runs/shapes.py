"""What the files of a run must look like to be read: a run directory may come from anybody. Used by ``RunDir``.

Every key may be missing, and others may be there; what is there under a known name has its type, and numbers are
numbers. Strictly: a text in the place of a score is an error here, not a crash in a plot.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

ABSENT: Any = None
"""Stands for a key that is not there; one that is there can't be null unless its type says so."""
Number = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**63)]


class Shape(BaseModel):
    """Strict about what it knows, open to what it does not."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


class Bin(Shape):
    """One bin of a reliability diagram."""

    low: Number
    high: Number
    confidence: Number
    accuracy: Number
    count: Count


class Calibrated(Shape):
    """How well the probabilities of a split fit."""

    ece: Number = ABSENT
    ece_scaled: Number = ABSENT
    bins: list[Bin] = ABSENT
    bins_scaled: list[Bin] = ABSENT


class Calibration(Shape):
    """The temperature, and each split by its name."""

    __pydantic_extra__: dict[str, Calibrated]
    temperature: Number | None = None
    fitted_on: str | None = None


class Group(Shape):
    """Answers about names that were seen in the same places."""

    seen_in_pretraining: bool | None
    seen_in_finetuning: bool | None
    rows: Annotated[int, Field(ge=1)]
    exact_match: Number | None
    confidence: Number


class Point(Shape):
    """One point of a risk-coverage curve."""

    coverage: Number
    accuracy: Number


class Knowledge(Shape):
    """What the confidence of answers is worth, on one split."""

    groups: list[Group]
    risk_coverage: Annotated[list[Point], Field(min_length=1)] = ABSENT
    bins: list[Bin] = ABSENT


class Data(Shape):
    """What was trained and scored on."""

    source: str = ABSENT
    rows: dict[str, Count] = ABSENT
    fingerprints: dict[str, str] = ABSENT
    notes: list[str] = ABSENT
    warnings: list[str] = ABSENT
    """Those of the notes that nobody should overlook."""


class Parameters(Shape):
    """How many weights there are, and how many moved."""

    trainable: Count
    total: Count
    formula: str | None = None


class Selection(Shape):
    """Which checkpoint was kept, and why."""

    metric: str | None = None
    step: Count | None = None
    score: Number | None = None


class Sample(Shape):
    """What a model wrote."""

    prompt: str
    text: str


class Scores(Shape):
    """Numbers by name, and those of each label."""

    __pydantic_extra__: dict[str, Number | bool | None]
    per_class: dict[str, dict[str, Number]] = ABSENT


class Baseline(Scores):
    """The same of a simple system, which may say what it always answers."""

    answer: str = ABSENT
    note: str = ABSENT
    """What a reader of the scores must know, or why there are none."""


class Metrics(Shape):
    """metrics.json."""

    task: str = ABSENT
    splits: dict[str, Scores] = ABSENT
    baselines: dict[str, dict[str, Baseline]] = ABSENT
    parameters: Parameters = ABSENT
    speed: dict[str, Number | None] = ABSENT
    collapsed: bool | str | None = None
    collapse_reason: str | None = None
    verified: bool = ABSENT
    seed: int = ABSENT
    selection: Selection = ABSENT
    data: Data = ABSENT
    labels: list[str] = ABSENT
    calibration: Calibration | None = None
    knowledge: dict[str, Knowledge] = ABSENT
    pretraining: dict[str, Any] = ABSENT
    samples: list[Sample] = ABSENT


class Prediction(Shape):
    """A row of predictions/*.jsonl."""

    id: int | str = ABSENT
    text: str = ABSENT
    text_pair: str = ABSENT
    gold: str | None = None
    label: str = ABSENT
    probabilities: dict[str, Number] = ABSENT
    confidence: Number = ABSENT
    ended: bool = ABSENT
    gold_probability: Number = ABSENT
    seen_in_pretraining: bool | None = None
    seen_in_finetuning: bool | None = None


class Course(Shape):
    """A row of history.jsonl."""

    __pydantic_extra__: dict[str, Number | None]
    step: Count
    split: str | None = None
    samples: list[Sample] = ABSENT


class Machine(Shape):
    """environment.json."""

    hftune: str = ABSENT
    python: str = ABSENT
    libraries: dict[str, str] = ABSENT
    platform: str = ABSENT
    cpu: str = ABSENT
    cores: dict[str, Count] = ABSENT
    memory_gb: Number = ABSENT
    devices: list[dict[str, str | Number | None]] = ABSENT
    git: dict[str, str | bool | None] | None = None
    command: str = ABSENT


class Pushed(Shape):
    """hub.json."""

    repo: str
    revision: str
    commit: str
    url: str
    step: Count | None


def problem(shape: type[Shape], value: Any) -> str | None:
    """What is wrong with a value of this shape, in a few words; None where nothing is."""
    try:
        shape.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where[:100]!r}: {first['msg'][:1].lower()}{first['msg'][1:]}"
    return None
