"""Brings the target's tables to newer definitions of the source's: columns, names, keys, expressions."""
