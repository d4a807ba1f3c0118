"""The side of a Delta lake."""
