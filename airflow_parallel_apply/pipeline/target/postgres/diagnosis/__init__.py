"""Translates the server's errors into errors of the pipeline, each with what a person has to do."""
