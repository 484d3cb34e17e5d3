"""How attention and products are computed on each kind of device."""
