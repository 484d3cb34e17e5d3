"""Equations in float64 NumPy, which share no code with what they check."""
