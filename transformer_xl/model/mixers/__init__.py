"""Mixers: what lets a token see the tokens before it, one file each."""
