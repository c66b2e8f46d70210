"""Questions: reading them with every check that needs no model, and the scores of constant answers. Without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hftune.data.questions import Questions, QuestionSplits, load_questions
from hftune.data.settings import QuestionData
from hftune.errors import HftuneError
from hftune.models.settings import MASK
from hftune.tasks.task import SplitScores


def checked_questions(section: QuestionData) -> QuestionSplits:
    """Read and check the questions."""
    data = load_questions(section)
    for rows in data.named.values():
        refuse_marks(rows)
    return data


def refuse_marks(rows: Questions) -> None:
    """The mask token ends question and answer, so it can't be a part of either."""
    texts = zip(rows.questions, rows.answers or [""] * len(rows), rows.lines, strict=True)
    line = next((line for question, answer, line in texts if MASK in question + answer), None)
    if line is not None:
        raise HftuneError(
            f"{rows.where!r}, line {line}: contains {MASK}, which marks the end of question and answer",
            hint="leave that character out of the data",
        )


def constant_baseline(
    answer: str, data: QuestionSplits, splits: Sequence[str], name: str = "constant"
) -> dict[str, SplitScores]:
    """Scores of one constant answer on the splits whose answers are known."""
    known = {split: answers for split in splits if (answers := data.named[split].answers) is not None}
    scores = {
        split: {"exact_match": constant_answer(answers, answer), "answer": answer} for split, answers in known.items()
    }
    return {name: scores} if scores else {}


def best_constant(rows: Questions) -> dict[str, dict[str, object]]:
    """The most frequent answer of the split itself: no constant scores higher."""
    if rows.answers is None:
        return {}
    answer = most_frequent_answer(rows.answers)
    return {"best constant answer": {"exact_match": constant_answer(rows.answers, answer), "answer": answer}}


def constant_answer(gold: Sequence[str], answer: str) -> float:
    """Ratio of questions for which one fixed answer is right, surrounding whitespace ignored."""
    if not gold:
        raise HftuneError("There are no answers to score.", hint="Give a split that holds at least one row.")
    return sum(truth.strip() == answer.strip() for truth in gold) / len(gold)


def most_frequent_answer(train: Sequence[str]) -> str:
    """The most frequent answer of train; in a tie the first in alphabetical order.

    For birth places this is "London": 5 % of the answers, which a model must beat to have learned any fact.
    """
    if not train:
        raise HftuneError("There are no training answers.", hint="Give a split that holds at least one row.")
    counts = Counter(answer.strip() for answer in train)
    return min(counts, key=lambda answer: (-counts[answer], answer))
