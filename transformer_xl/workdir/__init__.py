"""What a run writes and reads: checkpoints, logs, records."""
