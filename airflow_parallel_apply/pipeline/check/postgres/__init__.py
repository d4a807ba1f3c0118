"""Checks for pipelines whose source and target are both PostgreSQL."""
