"""The enwik8 dataset."""
