"""The demonstration, and the embedded PostgreSQL servers that it shares with tests and benchmarks."""
