"""Queries of PostgreSQL."""
