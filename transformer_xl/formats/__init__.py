"""Readers of foreign file formats; they never run code from a file."""
