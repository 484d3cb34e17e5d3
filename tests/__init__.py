"""Tests; `tests.oracle` is the reference that the model is held against."""
