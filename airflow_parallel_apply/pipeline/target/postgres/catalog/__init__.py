"""Describes the target's tables, columns and indexes from its catalog, and tells which columns fit which."""
