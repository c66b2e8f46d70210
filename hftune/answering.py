"""Models that answer questions, in use: answers with their confidence, and the scores of a run on any questions.

Called by ``hftune.inference``, which knows by the kind of a model that it is one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from hftune.config.data import QuestionData
from hftune.config.model import ModelSection
from hftune.config.section import expect
from hftune.data.questions import Questions, load_question_split, load_questions
from hftune.errors import HftuneError
from hftune.evaluation.baselines import commonest_answer, constant_answer
from hftune.evaluation.knowledge import answers_collapsed, knowledge
from hftune.models.answerer import Answerer
from hftune.models.chars import unknown_in
from hftune.models.positions import max_positions
from hftune.outcomes import Prediction, Request, Scores
from hftune.runs.directory import RunDir, is_run
from hftune.runs.naming import safe
from hftune.tasks.answers import answer_split
from hftune.tasks.question_checks import refuse_long, refuse_marks, texts_of
from hftune.tasks.seen import Pretraining, Seen
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
            yield Prediction(question, None, answer.text, {answer.text: answer.confidence})


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
    if request.data is None and own is None:
        raise HftuneError(f"{request.model} is not a run, so it has no data of its own", hint="add --data NAME|PATH")
    trained = None if own is None else load_questions(own[1])
    if request.data is None and trained is not None and own is not None:
        split = request.split or ("test" if trained.test is not None and trained.test.answers is not None else "dev")
        if split not in trained.named:
            raise HftuneError(
                f"the run has no {split} split", hint=f"choose one with --split: {', '.join(trained.named)}"
            )
        source, rows = own[1].name, trained.named[split]
    else:
        assert request.data is not None, "one of the two was given"
        source = request.data
        split, rows = load_question_split(QuestionData(name=source), request.split)
    refuse_marks(rows)
    refuse_long(rows, answerer.tokenizer, max_positions(answerer.model.config))
    if told := unknown_in(answerer.tokenizer, texts_of(rows), rows.where):
        listener.warn(told)
    if own is None or trained is None:
        seen = Seen(None, frozenset(), Pretraining(f"{request.model} is not a run", None))
    else:
        seen = Seen.of(own[0], own[1], trained.train.questions)
        _warn_of_overlap(trained.train, rows, split, listener)
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
        belongs=_file(request, split, own_data=own is not None and own[1].name == source),
    )


def _file(request: Request, split: str, *, own_data: bool) -> Path | None:
    """predictions/SPLIT.txt of the run; the name of other data goes before the split."""
    path = _run_of(request.model)
    if path is None:
        return None
    name = split if own_data or request.data is None else f"{safe(Path(request.data).stem)}-{split}"
    return RunDir(path).predictions(split).with_name(f"{name}.txt")


def _run_of(model: str) -> Path | None:
    path = Path(model)
    return next((place for place in (path, path.parent) if is_run(place)), None)


def _own_data(model: str) -> tuple[ModelSection, QuestionData] | None:
    """Where the weights of a run came from, and the questions that it was trained on; None for what is not a run."""
    path = _run_of(model)
    if path is None:
        return None
    recipe = RunDir.open(path).read_recipe()
    return recipe.model, expect(recipe.data, QuestionData)


def _constant(rows: Questions) -> dict[str, dict[str, object]]:
    """What the commonest answer of the split itself gets: no constant gets more."""
    if rows.answers is None:
        return {}
    answer = commonest_answer(rows.answers)
    return {"best constant answer": {"exact_match": constant_answer(rows.answers, answer), "answer": answer}}


def _warn_of_overlap(train: Questions, rows: Questions, split: str, listener: Listener) -> None:
    """Questions that the run was trained on are no test of it."""
    trained = set(train.questions)
    again = sum(question in trained for question in rows.questions)
    if again and split != "train":
        listener.warn(f"{again:,} of these {len(rows):,} questions are among those that the run was trained on")
