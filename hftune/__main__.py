"""``python -m hftune``: what ``accelerate launch -m hftune …`` runs. See docs/security.md for what ``-P`` adds."""

import os  # both are loaded since Python started, so neither is searched on the path
import sys


def _leave_current_folder_out() -> None:
    """Remove the current folder, which ``python -m`` puts first on the path, before anything is imported from it."""
    try:
        current = os.getcwd()  # noqa: PTH109  # pathlib would come from that folder
    except OSError:  # the folder was deleted, and Python has not put it on the path
        return
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", current):
        del sys.path[0]


if __name__ == "__main__":
    _leave_current_folder_out()

    from hftune.cli import main

    main()
