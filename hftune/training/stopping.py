"""Stop requests from outside: Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 (Slurm's warning); the run stops after its step.

Windows has no SIGUSR1 and no SIGHUP; Ctrl-Break takes the place of the first.

``hftune.training.fitting.fit`` listens while it trains; ``hftune.training.trainer`` looks at each step boundary. Before
and after, where there is no step to wait for, ``hftune.opening`` ends the run with ``ending_at_once``.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

from hftune.errors import Interrupted
from hftune.portability import HANGUP, WARNING_SIGNAL

SIGNALS = (signal.SIGINT, signal.SIGTERM, WARNING_SIGNAL, *HANGUP)


class StopRequest:
    """The first signal that asked for an end; 0 while nobody has."""

    def __init__(self) -> None:
        """Nobody has asked yet."""
        self.signal_number = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals for a while."""
        with _handled(SIGNALS, self._received):
            yield

    def _received(self, number: int, frame: FrameType | None) -> None:
        # Only a second Ctrl-C is a person who will not wait. Slurm sends SIGUSR1 and then SIGTERM to a run that is
        # still saving, and it must be let finish; torchrun passes on the Ctrl-C that its processes have got already.
        if number == self.signal_number == signal.SIGINT and "TORCHELASTIC_RUN_ID" not in os.environ:
            raise Interrupted(
                "stopped at once; what had been done since the last checkpoint is lost",
                hint="go on from the last checkpoint with --resume",
                signal_number=number,
            )
        self.signal_number = self.signal_number or number


def stopped(number: int, when: str) -> Interrupted:
    """The end of a run that a signal has asked for.

    Args:
        number: Of the signal.
        when: At which point of the run, and what has become of it.
    """
    message = f"stopped by {signal.Signals(number).name} {when}"
    return Interrupted(message, hint="go on with --resume", signal_number=number)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Let SIGTERM, SIGUSR1 and SIGHUP end what is under way as Ctrl-C does: a message, a code, everything closed."""
    with _handled((signal.SIGTERM, WARNING_SIGNAL, *HANGUP), _end):
        yield


def _end(number: int, frame: FrameType | None) -> None:
    raise stopped(number, "outside training; what was saved is kept")


@contextmanager
def _handled(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Take signals for a while. Outside the main thread Python allows no handlers, so nothing is taken."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = [number for number in numbers if not _is_ignored_hangup(number)]
    before = {number: signal.signal(number, handler) for number in taken}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _is_ignored_hangup(number: int) -> bool:
    """Whether the user started the run with nohup, so that it survives a closed terminal."""
    return number in HANGUP and signal.getsignal(number) is signal.SIG_IGN
