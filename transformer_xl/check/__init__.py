"""Whether the devices of this machine compute the right numbers; how fast."""
