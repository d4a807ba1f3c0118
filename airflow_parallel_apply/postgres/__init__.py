"""Tools that every room that speaks to PostgreSQL shares."""
