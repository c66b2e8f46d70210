"""The errors a user can meet. Raised everywhere, turned into a message and an exit code by ``hftune.cli``.

Every error carries a hint: what was expected and what was got go into the message, what to do into the hint.
"""

from __future__ import annotations

from hftune.escapes import redacted


class HftuneError(Exception):
    """A request that can't be carried out as it stands: bad recipe, bad data, unknown model.

    Examples:
        >>> try:
        ...     hftune.train(data=[], progress=False)
        ... except hftune.HftuneError as error:
        ...     print(error.message)
        data is an empty list
    """

    exit_code = 2

    def __init__(self, message: str, *, hint: str) -> None:
        """Keep both halves apart, so that the command line can set them off from each other.

        A message may quote what was typed: tokens and passwords in it are taken out here, for every reader.
        """
        self.message, self.hint = redacted(message), redacted(hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        """Message and hint, for logs and for Python callers who see only the traceback."""
        return f"{self.message}\n  → {self.hint}"


class RunFailed(HftuneError):
    """The request was fine and the work began, but it did not come to a good end."""

    exit_code = 1


class Interrupted(HftuneError):
    """The run was asked to stop, saved what it had, and can go on from there."""

    def __init__(self, message: str, *, hint: str, signal_number: int) -> None:
        """The exit code follows the shell's convention: 128 plus the signal's number."""
        super().__init__(message, hint=hint)
        self.exit_code = 128 + signal_number
