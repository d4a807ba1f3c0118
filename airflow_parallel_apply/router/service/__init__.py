"""The router as a service: tickets answered over Arrow Flight, from what it holds or from the log."""
