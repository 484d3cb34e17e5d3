"""Optimizers, one a file; `optimizer.py` is their interface."""
