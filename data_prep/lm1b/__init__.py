"""The lm1b dataset."""
