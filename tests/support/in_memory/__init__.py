"""A pipeline without servers: ledger, target and staging in this process, and lanes that take turns as a test says."""
