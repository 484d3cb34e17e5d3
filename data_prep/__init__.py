"""Turns corpora into token files."""
