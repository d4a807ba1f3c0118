"""The common part of the services, whatever they serve: addresses, TLS, token, ready file, metrics."""
