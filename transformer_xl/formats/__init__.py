"""Inert readers of foreign files: they run no code from them."""
