"""What can be trained: one file a task, one line in TASKS. The pipeline knows only ``hftune.tasks.task.Task``."""

from __future__ import annotations

from hftune.tasks.classification import Classification

TASKS = {
    "classify": Classification,
}
