"""Copying from PostgreSQL to PostgreSQL: COPY out of one into COPY of the other."""
