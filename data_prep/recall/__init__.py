"""The recall dataset."""
