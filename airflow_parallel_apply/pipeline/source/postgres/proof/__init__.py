"""Proves that the slot's stream tells all that happened to the followed tables, or names what it does not."""
