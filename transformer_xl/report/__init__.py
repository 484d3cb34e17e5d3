"""A page about a run: `--mode=report`."""
