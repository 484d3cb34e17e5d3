"""The wikitext103 dataset."""
