"""Relative attention as fast as the device allows; see docs/kernels.md."""
