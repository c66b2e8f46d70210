"""What a run leaves on disk: its directory, its environment, its plots and its report."""
