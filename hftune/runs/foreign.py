"""Reading run directories that somebody else may have made or changed. Used by the commands that are given some.

Each file is checked for its shape when it is read; files that do not fit together show only when they are used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hftune.errors import HftuneError

MISFITS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError, RecursionError)
"""What code that relies on a run runs into when its files contradict each other."""


@contextmanager
def fitting(what: object) -> Iterator[None]:
    """Say plainly that the files of a run do not fit together, in place of the error that shows it.

    Args:
        what: The run or runs, as the user called them.
    """
    try:
        yield
    except HftuneError:
        raise
    except MISFITS as error:
        raise HftuneError(
            f"the files of {what} do not fit together: {type(error).__name__}: {str(error)[:200]}",
            hint="a file of the run was changed, or another version wrote it; --debug shows where it was noticed",
        ) from error
