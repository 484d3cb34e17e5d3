"""The paper's analyses, one command each; see docs/analyses.md."""
