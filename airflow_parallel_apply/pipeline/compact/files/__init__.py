"""Snapshots of tables in a directory of files, beside the feed that they are folded from."""
