"""Compiling for a TPU slice that is not here."""
