"""What is wrong with questions for a certain model, said before it is trained on them or asked.

Called by the task that answers questions and by ``hftune.answering``.
"""

from __future__ import annotations

import logging

from transformers import PreTrainedTokenizerBase

from hftune.data.questions import Questions, QuestionSplits
from hftune.errors import HftuneError
from hftune.models.answerer import sequences, too_long
from hftune.models.chars import MASK, count_unknown, unknown_in

logger = logging.getLogger(__name__)


def refuse_marks(rows: Questions) -> None:
    """The mark ends question and answer, so it can't be a part of either."""
    texts = zip(rows.questions, rows.answers or [""] * len(rows), rows.lines, strict=True)
    line = next((line for question, answer, line in texts if MASK in question + answer), None)
    if line is not None:
        raise HftuneError(
            f"{rows.where!r}, line {line}: holds {MASK}, which marks the end of question and answer",
            hint="leave that character out of the data",
        )


def refuse_long(rows: Questions, tokenizer: PreTrainedTokenizerBase, block: int | None) -> None:
    """A row that does not fit the model's block would be cut, or crash, long after the work began."""
    if block is None:
        return
    encoded = sequences(tokenizer, rows.questions, rows.answers)
    for (ids, asked), question, line in zip(encoded, rows.questions, rows.lines, strict=True):
        if asked >= block:
            raise too_long(question, asked, block, where=f"{rows.where!r}, line {line}")
        if len(ids) > block:
            raise HftuneError(
                f"{rows.where!r}, line {line}: question and answer have {len(ids)} tokens with their marks, the "
                f"model's block has {block}: {question[:60]!r}",
                hint="shorten the row or leave it out, or take a model with a larger block",
            )


def refuse_unknown(data: QuestionSplits, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Say which characters the model has never met; answers to learn that hold one could never be given."""
    answers = count_unknown(tokenizer, data.train.known)
    if answers.count:
        raise HftuneError(
            f"{name} has another vocabulary than the training answers of {data.source}: {answers.describe()}",
            hint="pretrain on a corpus that holds these characters, or leave those rows out",
        )
    others = [text for rows in data.named.values() for text in texts_of(rows)]
    if told := unknown_in(tokenizer, others, data.source):
        logger.warning(told)


def texts_of(rows: Questions) -> list[str]:
    """Questions and answers, where there are some."""
    return [*rows.questions, *(rows.answers or ())]
