"""Merges staged net changes into the target's tables, and counts every row."""
