"""Scoring a split, and what attention does with memory."""
