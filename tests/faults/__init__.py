"""Runs that are hurt, and go on as if nothing had been: `make test-faults`."""
