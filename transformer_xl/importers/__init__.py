"""Conversion of published weights to checkpoints of this package, and back."""
