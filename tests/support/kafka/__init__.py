"""Reading topics as any consumer does, and a schema registry."""

from tests.support.kafka.reading import Read, committed

__all__ = ["Read", "committed"]
