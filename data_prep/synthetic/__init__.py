"""Synthetic tasks, one file each, in the form of `task.py`."""
