"""Connections that give up a server of which nothing is heard: `connect`.

What stands between (a proxy, a load balancer) may acknowledge what it swallows. Keepalives and TCP's own timeouts are
content with that, and the server's timeouts are out of reach.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg.abc import RV, PQGen

SILENCE_SECONDS: Final = 60.0
"""Longer than the statements of a queue take, and than they wait for one another's locks."""


class Unanswered(psycopg.OperationalError):
    """Nothing was heard of a statement for so long that its connection was closed."""


class AnsweringConnection(psycopg.Connection[tuple[Any, ...]]):
    """Closed when a statement had no answer, nor a part of one, for `SILENCE_SECONDS`. Errors: `Unanswered`."""

    clock: Callable[[], float] = staticmethod(time.monotonic)

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        """All that psycopg waits for once it has connected."""
        return super().wait(self._heard(gen), *args, **kwargs)

    def _heard(self, steps: PQGen[RV]) -> PQGen[RV]:
        heard = self.clock()
        ready: Any = None  # as `next` sends it
        try:
            while True:
                ready = yield steps.send(ready)
                if ready:
                    heard = self.clock()
                elif self.clock() - heard > SILENCE_SECONDS:
                    self.pgconn.finish()
                    raise Unanswered(f"it has not answered for {SILENCE_SECONDS:g} s")
        except StopIteration as end:
            result: RV = end.value
            return result


def connect(conninfo: str, *, clock: Callable[[], float] = time.monotonic) -> AnsweringConnection:
    """A connection in autocommit. `clock`: seconds, monotonic. Errors: psycopg's own."""
    connection = AnsweringConnection.connect(conninfo, autocommit=True)
    connection.clock = clock
    return connection
