"""Several processes of one run: joining, watching and telling each other."""
