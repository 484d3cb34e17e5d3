"""Token files, vocabularies and the segments that lanes read."""
