"""Using what was trained: ``predict`` answers texts, ``evaluate`` scores a run or any model on any data that suits it.

Called by ``hftune predict`` and ``hftune evaluate``, and by Python users (``from hftune import predict``). What a model
was trained for stands in the hftune.json beside its weights; one that says nothing is taken for a classifier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from hftune import answering, labelling
from hftune.config.model import ModelSection
from hftune.errors import HftuneError
from hftune.models.answerer import Answerer
from hftune.models.checkpoint import ask_first, explained, locate
from hftune.models.classifier import Classifier
from hftune.models.facts import saved_facts
from hftune.outcomes import Prediction, Request, Scores
from hftune.training.progress import Listener, Silent

Rows = Iterable[dict[str, str]]
Predictor = Callable[[Rows, int], Iterator[Prediction]]
"""Rows and batch size → a prediction a row, in order."""


def _labels(model: str, settings: ModelSection) -> Predictor:
    classifier = Classifier.load(model, section=settings)
    return lambda rows, size: labelling.stream(classifier, rows, batch_size=size)


def _answers(model: str, settings: ModelSection) -> Predictor:
    answerer = Answerer.load(model, settings)
    return lambda rows, size: answering.stream(answerer, rows, batch_size=size)


PREDICTORS: dict[str, Callable[[str, ModelSection], Predictor]] = {
    "classify": _labels,
    "joint": _labels,
    "answer": _answers,
}
"""How a model of each kind answers texts."""

EVALUATORS: dict[str, Callable[[Request, Listener], Scores]] = {
    "classify": labelling.evaluate,
    "joint": labelling.evaluate,
    "answer": answering.evaluate,
}
"""How a model of each kind is scored."""

UNMARKED = "classify"
"""What a model is taken for that does not say what it was trained for."""


def kind_of(model: str, settings: ModelSection) -> str:
    """The kind of task that a run, a folder or a Hub model was trained for."""
    location = locate(model)
    ask_first(location, settings)
    with explained(settings):
        return str(saved_facts(location, settings.revision).get("task", UNMARKED))


def predictor(model: str, settings: ModelSection) -> tuple[str, Predictor]:
    """The kind of a model, and how to ask it."""
    kind = kind_of(model, settings)
    if kind not in PREDICTORS:
        raise HftuneError(
            f"{model} was trained for the task {kind!r}, which gives texts no labels and no answers",
            hint=f"train it further first, as in: hftune finetune --from {model}",
        )
    return kind, PREDICTORS[kind](model, settings)


def predict(
    model: str | Path,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    *,
    batch_size: int = 64,
    settings: ModelSection | None = None,
) -> list[Prediction]:
    """Label texts, or answer questions, with a run, a folder or a Hub model.

    Args:
        model: A run directory, a folder that save_pretrained wrote, or a Hub id.
        texts: What to label; one string a row.
        pairs: The second text of each row, for a model that was trained on pairs.
        batch_size: Rows in one forward pass.
        settings: Revision, and what may be trusted; nothing is by default.

    Returns:
        One prediction a text, in the order given.
    """
    if isinstance(texts, str):
        raise HftuneError("predict takes a list of texts, got one string", hint="write predict(model, [text])")
    if pairs is not None and len(pairs) != len(texts):
        raise HftuneError(
            f"{len(texts)} texts but {len(pairs)} second texts", hint="give one second text for each text"
        )
    _, ask = predictor(str(model), settings or ModelSection(name=str(model)))
    rows = [
        {"text": text} if pairs is None else {"text": text, "text_pair": pairs[index]}
        for index, text in enumerate(texts)
    ]
    return list(ask(rows, batch_size))


def evaluate(request: Request, listener: Listener | None = None) -> Scores:
    """Score a model on one split, in the way of its kind."""
    kind = kind_of(request.model, request.settings)
    if kind not in EVALUATORS:
        raise HftuneError(
            f"{request.model} was trained for the task {kind!r}, which can't be scored apart from its run",
            hint=f"its scores are in metrics.json; scored again can be: {', '.join(EVALUATORS)}",
        )
    return EVALUATORS[kind](request, listener or Silent())
