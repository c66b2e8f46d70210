"""The files of a run as types: what ``RunDir`` accepts when it reads metrics.json, history.jsonl and the others.

A run directory may come from anyone. Known keys are checked strictly (a string instead of a score is an error here,
not in a plot); keys may be missing, and unknown ones are allowed, so that a newer hftune can add some.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hftune.errors import HftuneError

VERSION = 1
"""Version of metrics.json."""
# The default of a key that may be missing. One that is present can't be null unless its type allows it.
ABSENT: Any = None
Number = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
_MISMATCHES = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError, RecursionError)


class Schema(BaseModel):
    """Strict for known keys; unknown keys are allowed."""

    # Not strict, pydantic would accept the text "0.9" as a score, and the plot that reads the file would crash.
    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


class _Bin(Schema):
    low: Number
    high: Number
    confidence: Number
    accuracy: Number
    count: Count


class _SplitCalibration(Schema):
    ece: Number = ABSENT
    ece_scaled: Number = ABSENT
    bins: list[_Bin] = ABSENT
    bins_scaled: list[_Bin] = ABSENT


class _Calibration(Schema):
    __pydantic_extra__: dict[str, _SplitCalibration]
    temperature: Number | None = None
    fitted_on: str | None = None


class _SeenGroup(Schema):
    # Answers about names that were seen in the same places.
    seen_in_pretraining: bool | None
    seen_in_finetuning: bool | None
    rows: Annotated[int, Field(ge=1)]
    exact_match: Number | None
    confidence: Number


class _CoveragePoint(Schema):
    coverage: Number
    accuracy: Number


class _Knowledge(Schema):
    groups: list[_SeenGroup]
    risk_coverage: Annotated[list[_CoveragePoint], Field(min_length=1)] = ABSENT
    bins: list[_Bin] = ABSENT


class _DataFacts(Schema):
    source: str = ABSENT
    rows: dict[str, Count] = ABSENT
    fingerprints: dict[str, str] = ABSENT
    notes: list[str] = ABSENT
    warnings: list[str] = ABSENT


class _ParameterCounts(Schema):
    trainable: Count
    total: Count
    formula: str | None = None


class _Pooling(Schema):
    kind: str
    source: str


class _SelectedCheckpoint(Schema):
    metric: str | None = None
    step: Count | None = None
    score: Number | None = None


class _Sample(Schema):
    prompt: str
    text: str


class _SplitScores(Schema):
    __pydantic_extra__: dict[str, Number | bool | None]
    per_class: dict[str, dict[str, Number]] = ABSENT


class _BaselineScores(_SplitScores):
    answer: str = ABSENT
    note: str = ABSENT


class MetricsFile(Schema):
    """metrics.json."""

    version: int = ABSENT
    task: str = ABSENT
    splits: dict[str, _SplitScores] = ABSENT
    baselines: dict[str, dict[str, _BaselineScores]] = ABSENT
    parameters: _ParameterCounts = ABSENT
    pooling: _Pooling = ABSENT
    speed: dict[str, Number | None] = ABSENT
    collapsed: bool | str | None = None
    collapse_reason: str | None = None
    verified: bool = ABSENT
    seed: int = ABSENT
    selection: _SelectedCheckpoint = ABSENT
    data: _DataFacts = ABSENT
    labels: list[str] = ABSENT
    calibration: _Calibration | None = None
    knowledge: dict[str, _Knowledge] = ABSENT
    pretraining: dict[str, Any] = ABSENT
    samples: list[_Sample] = ABSENT


class PredictionLine(Schema):
    """One line of predictions/*.jsonl."""

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


class HistoryLine(Schema):
    """One line of history.jsonl."""

    __pydantic_extra__: dict[str, Number | None]
    step: Count
    split: str | None = None
    samples: list[_Sample] = ABSENT


class EnvironmentFile(Schema):
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


class PushRecord(Schema):
    """hub.json: the last push of a run, so that it is known without a network."""

    repo: str
    revision: str
    commit: str
    url: str
    step: Count | None = None
    """Training step of a best checkpoint; None for the finished model."""


def problem(schema: type[Schema], value: Any) -> str | None:
    """What is wrong with a value, in one line; None if it matches the schema."""
    try:
        schema.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where[:100]!r}: {first['msg'][:1].lower()}{first['msg'][1:]}"
    return None


@contextmanager
def consistent(what: object) -> Iterator[None]:
    """Turn exceptions of the block into one error about files that contradict each other.

    Each file is checked when it is read; whether they fit together is known only when they are used.

    Args:
        what: The run or runs, as the user named them.
    """
    try:
        yield
    except HftuneError:
        raise
    except _MISMATCHES as error:
        raise HftuneError(
            f"the files of {what} do not fit together: {type(error).__name__}: {str(error)[:200]}",
            hint="a file of the run was changed, or another version wrote it; --debug shows the traceback",
        ) from error
