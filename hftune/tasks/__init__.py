"""The tasks: one file per task, one line in TASKS. Imports nothing heavy until a task is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hftune.tasks.task import Task

TASKS = {
    "classify": "classification.Classification",
    "joint": "joint.Joint",
    "mlm": "mlm.MaskedLanguageModel",
    "span": "span_corruption.SpanCorruption",
    "clm": "causal_lm.CausalLanguageModel",
    "distill_encoder": "distill_encoder.DistillEncoder",
    "answer": "question_answer.QuestionAnswering",
}
"""Kind of the ``task`` section → module and class, a subclass of ``hftune.tasks.task.Task``."""


def task_class(kind: str) -> type[Task[Any]]:
    """The class of a kind of task."""
    module, name = TASKS[kind].split(".")
    found: type[Task[Any]] = getattr(import_module(f"hftune.tasks.{module}"), name)
    return found
