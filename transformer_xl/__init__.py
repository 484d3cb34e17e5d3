"""Transformer-XL in JAX/Flax."""
