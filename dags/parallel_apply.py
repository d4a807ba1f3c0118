"""Placeholder of the example DAG."""
