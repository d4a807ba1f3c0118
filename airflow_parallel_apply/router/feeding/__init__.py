"""Feeding the store `memory`: reads a log once along a plan's stretches, and answers tickets from what it holds."""
