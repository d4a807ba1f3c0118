"""Reads the slot: peeks at it, decodes it into the log's rows, and advances it to what is durable."""
