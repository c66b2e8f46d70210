"""Studies: train a grid or a search of settings with several seeds, and compare them."""
