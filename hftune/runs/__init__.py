"""The files of a run: its directory, its environment, its plots and its report."""
