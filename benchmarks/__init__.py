"""Measurements of speed and memory; each module with a `main` is a command."""
