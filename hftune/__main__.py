"""``python -m hftune``: what ``accelerate launch -m hftune …`` runs."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # python -m puts the current folder first on the path: a torch.py that lies among data must not be imported.
        del sys.path[0]

    from hftune.cli import main

    main()
