"""Dynamic evaluation and the neural cache."""
