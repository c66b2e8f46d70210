"""Models that answer questions, in use: answers with their confidence, and the scores of a run on any questions.

Called by ``hftune.inference``, which knows by the kind of a model that it is one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from hftune.config.data import QuestionData
from hftune.config.section import expect
from hftune.data.questions import Questions, load_question_split, load_questions
from hftune.errors import HftuneError
from hftune.evaluation.baselines import commonest_answer, constant_answer
from hftune.evaluation.knowledge import answers_collapsed, knowledge
from hftune.models.answerer import Answerer
from hftune.models.chars import unknown_in
from hftune.models.positions import max_positions
from hftune.outcomes import Prediction, Request, Scores
from hftune.runs.naming import safe
from hftune.tasks.answers import answer_split
from hftune.tasks.question_checks import refuse_long, refuse_marks, texts_of
from hftune.tasks.seen import Seen, run_of
from hftune.training.progress import Listener

logger = logging.getLogger(__name__)

CHUNK = 2048
"""Questions that are sorted by length together."""


def stream(answerer: Answerer, rows: Iterable[dict[str, str]], *, batch_size: int) -> Iterator[Prediction]:
    """Answers in the order of the questions, a chunk at a time."""
    remaining = iter(rows)
    while chunk := list(islice(remaining, CHUNK)):
        if any("text_pair" in row for row in chunk):
            raise HftuneError("a question has one text, got a second one", hint="leave the second texts out")
        questions = [row["text"] for row in chunk]
        if told := unknown_in(answerer.tokenizer, questions, "the questions"):
            logger.warning(told)
        for question, answer in zip(questions, answerer.answers(questions, batch_size=batch_size), strict=True):
            yield Prediction(question, None, answer.text, {answer.text: answer.confidence}, answer.ended)


def evaluate(request: Request, listener: Listener) -> Scores:
    """Let a model answer one split; scores where the right answers are known, predictions in any case."""
    if request.columns or request.metrics:
        raise HftuneError(
            f"{request.model} answers questions, which have no columns to name and one score, exact match",
            hint="leave --text-column, --pair-column, --label-column and --metric out",
        )
    listener.stage("loading model")
    answerer = Answerer.load(request.model, request.settings)
    listener.stage("loading data")
    own = _own_data(request.model)
    if request.data is None:
        source, split, rows = _own_split(request, own)
    else:
        source = request.data
        split, rows = load_question_split(QuestionData(dataset_name=source), request.split)
    refuse_marks(rows)
    refuse_long(rows, answerer.tokenizer, max_positions(answerer.model.config))
    if told := unknown_in(answerer.tokenizer, texts_of(rows), rows.where):
        listener.warn(told)
    _warn_of_overlap(own, rows, split, listener)
    seen = Seen.behind(request.settings, rows.questions)
    for note in seen.notes:
        listener.note(note)
    predictions, scores = answer_split(answerer, rows, seen, request.batch_size, listener, split)
    return Scores(
        source=source,
        split=split,
        scores=scores or {},
        baselines=_constant(rows),
        collapsed=answers_collapsed(predictions) if scores else None,
        predictions=predictions,
        extras={"knowledge": {split: knowledge(predictions)}},
        lines=[" ".join(row["label"].split()) for row in predictions],
        belongs=_file(request, split, own_data=own is not None and own.dataset_name == source),
    )


def _file(request: Request, split: str, *, own_data: bool) -> Path | None:
    """predictions/SPLIT.txt of the run; the name of other data goes before the split."""
    run = run_of(request.model)
    if run is None:
        return None
    name = split if own_data or request.data is None else f"{safe(Path(request.data).stem)}-{split}"
    return run.predictions(split).with_name(f"{name}.txt")


def _own_data(model: str) -> QuestionData | None:
    """The questions that a run was trained on; None for what is not a run."""
    run = run_of(model)
    return None if run is None else expect(run.read_recipe().data, QuestionData)


def _own_split(request: Request, own: QuestionData | None) -> tuple[str, str, Questions]:
    """The name of the run's own data, the name of the split, and its rows as the run had them."""
    if own is None:
        raise HftuneError(f"{request.model} is not a run, so it has no data of its own", hint="add --data NAME|PATH")
    try:
        splits = load_questions(own)
    except HftuneError as error:
        raise HftuneError(
            f"the run's own data can't be read: {error.message}",
            hint="a relative path counts from where the run was trained: go there, or name the data with --data",
        ) from error
    split = request.split or ("test" if splits.test is not None and splits.test.answers is not None else "validation")
    if split not in splits.named:
        raise HftuneError(f"the run has no {split} split", hint=f"choose one with --split: {', '.join(splits.named)}")
    return own.dataset_name, split, splits.named[split]


def _constant(rows: Questions) -> dict[str, dict[str, object]]:
    """What the commonest answer of the split itself gets: no constant gets more."""
    if rows.answers is None:
        return {}
    answer = commonest_answer(rows.answers)
    return {"best constant answer": {"exact_match": constant_answer(rows.answers, answer), "answer": answer}}


def _warn_of_overlap(own: QuestionData | None, rows: Questions, split: str, listener: Listener) -> None:
    """Questions that the run was trained on are no test of it."""
    if own is None or split == "train":
        return
    try:
        trained = set(load_questions(own).train.questions)
    except HftuneError as error:
        listener.note(f"whether the run was trained on these questions can't be told: {error.message}")
        return
    again = sum(question in trained for question in rows.questions)
    if again:
        listener.warn(f"{again:,} of these {len(rows):,} questions are among those that the run was trained on")
