"""Loads the rows of one attempt of a Spark task: stages them, or applies and prepares or commits them."""
