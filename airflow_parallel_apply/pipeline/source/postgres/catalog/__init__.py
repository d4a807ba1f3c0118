"""Describes tables and columns from the source's catalog: as they are now, and as far as provable as they were."""
