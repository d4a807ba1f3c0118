"""Makes staging tables, and the exact text that is copied into them."""
