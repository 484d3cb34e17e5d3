"""Runs on Cloud TPU slices, by `gcloud`."""
