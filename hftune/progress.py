"""The progress of a run, as hftune reports it, and how the progress bars and advice of other libraries are silenced."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


class ProgressReporter:
    """Receives the progress of a run. As in a TrainerCallback, every method does nothing until it is overridden."""

    def stage(self, text: str) -> None:
        """A new stage begins: loading, training, scoring, verifying."""

    def begin(self, total: int, unit: str) -> None:
        """A progress bar of ``total`` units starts; calls of ``advance`` follow."""

    def advance(self, done: int, facts: Mapping[str, float]) -> None:
        """``done`` of the units are finished; facts are the loss, learning rate and latest validation score."""

    def end(self) -> None:
        """The progress bar is finished."""

    def note(self, text: str) -> None:
        """A line that the user should read."""

    def warn(self, text: str) -> None:
        """A warning that the result may be wrong."""


@contextmanager
def progress_bar(progress: ProgressReporter, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """A progress bar for a loop that knows how many units were just finished: call what it yields with their number."""
    done = 0

    def advance(more: int) -> None:
        nonlocal done
        done += more
        progress.advance(done, {})

    progress.begin(total, unit)
    yield advance
    progress.end()


# ---- what other libraries print: the command line shows its own progress ----


def quiet_libraries() -> None:
    """Let only errors of the libraries through."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    quiet_datasets()
    logging.getLogger("accelerate").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"(torch|transformers|datasets|peft|accelerate)\b")


def quiet_datasets() -> None:
    """The same for datasets and the Hub, for work that needs no transformers: importing it takes about a second."""
    import datasets
    from huggingface_hub.utils import logging as hub_logging

    datasets.utils.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    hub_logging.set_verbosity(logging.ERROR)
