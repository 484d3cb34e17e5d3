"""One file an experiment; `base.py` holds every field once."""
