"""PostgreSQL as one side of a comparison."""
