"""The text dataset."""
