"""Ahead-of-time compilation for a named TPU slice."""
