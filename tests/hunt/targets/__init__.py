"""Targets of other kinds than PostgreSQL in a hunt: how a trial makes, breaks, mends and judges each."""
