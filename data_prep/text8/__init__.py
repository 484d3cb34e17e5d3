"""The text8 dataset."""
