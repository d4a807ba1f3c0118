"""MariaDB as one side of a comparison with another kind."""
