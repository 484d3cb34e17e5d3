"""What other tools ask of a model."""
