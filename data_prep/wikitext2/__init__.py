"""The wikitext2 dataset."""
