"""Encoders: rows of a log as typed columns, split by keys, encoded side by side, in formats that others read."""
