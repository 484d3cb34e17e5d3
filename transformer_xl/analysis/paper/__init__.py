"""The paper's tables and figures, repeated: `--mode=paper`."""
