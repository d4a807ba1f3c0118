"""CSV, as RFC 4180 has it."""
