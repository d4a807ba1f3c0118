"""Reads the messages by which a source sends DDL and definitions, and verifies who signed them."""
