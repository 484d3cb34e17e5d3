"""Generating and scoring text with a trained model."""
