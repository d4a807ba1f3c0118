"""A log that a router serves, as its readers see it without the directory."""
