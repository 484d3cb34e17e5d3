"""Compares a run with reference runs of its configuration."""
