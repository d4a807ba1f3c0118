"""What a person does with a pipeline from outside: looks at it, watches it, removes it, purges its log."""
