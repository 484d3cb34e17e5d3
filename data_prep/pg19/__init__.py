"""The pg19 dataset."""
