"""What every room that speaks to PostgreSQL shares."""
