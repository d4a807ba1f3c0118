"""The store `memory`: rows wait in a router, which reads the log once and streams them."""
