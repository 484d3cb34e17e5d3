"""How order is encoded: one file an encoding."""
