"""Imported by processes that others are forked from: everything that a run needs; nothing is computed."""

from __future__ import annotations

import gc

import blank_figures
import crash_case  # noqa: F401

import hftune.api
import hftune.cli.tables
import hftune.cli.terminal
import hftune.cli.train
import hftune.hub.publish
import hftune.pipeline.inference
import hftune.pipeline.request
import hftune.pipeline.verify
import hftune.runs.report  # noqa: F401
from hftune.tasks import TASKS, task_class

for kind in TASKS:
    task_class(kind)
blank_figures.install()
gc.freeze()  # without it each fork copies all of these objects with its first garbage collection
