"""``python -m hftune``: what ``accelerate launch -m hftune …`` runs."""

from hftune.cli import main

if __name__ == "__main__":
    main()
