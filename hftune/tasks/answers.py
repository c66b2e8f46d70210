"""Answers of a model to the questions of a split, and what one fixed answer gets.

Called by the task that answers questions, ``hftune.answering`` and ``hftune baseline``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import Any

from hftune.data.questions import Questions, QuestionSplits
from hftune.evaluation.baselines import constant_answer
from hftune.evaluation.knowledge import answer_scores
from hftune.models.answerer import Answerer
from hftune.tasks.seen import Seen
from hftune.training.progress import Listener, counting


def answer_split(
    answerer: Answerer, rows: Questions, seen: Seen, batch_size: int, listener: Listener, what: str
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Predictions of one split, and its scores where its answers are known.

    Each prediction holds the question as ``text``, the right answer as ``gold`` (where it is known), the model's as
    ``label`` with its ``confidence`` and whether it ``ended``, and where the name was seen.
    """
    with counting(listener, len(rows), f"answering {what}") as advance:
        answers = answerer.answers(rows.questions, batch_size=batch_size, advance=advance)
    where = seen.where(rows.questions)
    predictions: list[dict[str, Any]] = []
    for index, (question, answer) in enumerate(zip(rows.questions, answers, strict=True)):
        gold = {} if rows.answers is None else {"gold": rows.answers[index]}
        said = {"label": answer.text, "confidence": round(answer.confidence, 6), "ended": answer.ended}
        predictions.append({"id": index, "text": question, **gold, **said, **where[index]})
    if rows.answers is None:
        return predictions, None
    sums, counts = answerer.losses(rows.questions, rows.answers, batch_size=batch_size)
    for line, loss in zip(predictions, sums, strict=True):
        line["gold_probability"] = round(exp(-loss), 6)
    return predictions, {**answer_scores(predictions), "loss": sum(sums) / sum(counts)}


def constant_baseline(
    answer: str, data: QuestionSplits, splits: Sequence[str], name: str = "constant"
) -> dict[str, dict[str, dict[str, Any]]]:
    """What one fixed answer scores on the splits whose answers are known."""
    known = {split: answers for split in splits if (answers := data.named[split].answers) is not None}
    scores = {
        split: {"exact_match": constant_answer(answers, answer), "answer": answer} for split, answers in known.items()
    }
    return {name: scores} if scores else {}
