"""A directory of files as one side of a comparison."""
