"""The python_stdlib dataset."""
