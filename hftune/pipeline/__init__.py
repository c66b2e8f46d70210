"""What the commands do: train, verify, estimate, predict, score, export, and check the machine or a launch."""
