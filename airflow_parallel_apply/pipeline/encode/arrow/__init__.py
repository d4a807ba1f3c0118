"""Arrow's own file format (IPC)."""
