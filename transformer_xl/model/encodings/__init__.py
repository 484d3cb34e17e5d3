"""How order is encoded: one file an encoding, and the table of them."""
