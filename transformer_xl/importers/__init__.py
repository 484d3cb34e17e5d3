"""Published and foreign weights into checkpoints of this package, and back."""
