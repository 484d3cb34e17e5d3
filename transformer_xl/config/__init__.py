"""Configurations: each field, its rules, and loading."""
