"""What is checked where both ends are PostgreSQL."""
