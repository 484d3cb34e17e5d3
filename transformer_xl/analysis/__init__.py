"""The paper's analyses, one `--mode` each; see docs/analyses.md."""
