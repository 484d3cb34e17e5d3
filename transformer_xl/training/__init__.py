"""The training loop and the update it repeats."""
