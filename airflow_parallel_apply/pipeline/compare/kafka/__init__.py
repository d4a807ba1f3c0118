"""A feed in topics as one side of a comparison."""
