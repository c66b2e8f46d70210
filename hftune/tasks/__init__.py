"""What can be trained: one file a task, one line in TASKS. The pipeline knows only ``hftune.tasks.task.Task``."""

from __future__ import annotations

from typing import Any

from hftune.tasks.causal_lm import CausalLanguageModel
from hftune.tasks.classification import Classification
from hftune.tasks.joint import Joint
from hftune.tasks.mlm import MaskedLanguageModel
from hftune.tasks.question_answer import QuestionAnswering
from hftune.tasks.span_corruption import SpanCorruption
from hftune.tasks.task import Task

TASKS: dict[str, type[Task[Any]]] = {
    "classify": Classification,
    "joint": Joint,
    "mlm": MaskedLanguageModel,
    "span": SpanCorruption,
    "clm": CausalLanguageModel,
    "answer": QuestionAnswering,
}
