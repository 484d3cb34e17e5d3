"""Trained models on text: generation and scoring."""
