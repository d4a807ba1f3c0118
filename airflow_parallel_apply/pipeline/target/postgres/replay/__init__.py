"""Replays changes exactly: one by one, in the source's order."""
