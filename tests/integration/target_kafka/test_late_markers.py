"""A broker that answers a commit before readers see it, as Kafka does: its markers come later. No position is taken for
an older one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from airflow_parallel_apply.demo.kafka import KafkaBroker
from airflow_parallel_apply.pipeline.config import Consistency
from tests.support.kafka.feeds import replayed
from tests.support.rig import Rig
from tests.support.variants import gated

CONCURRENT_TRANSACTIONS = 51
LATE_SECONDS = 0.2


class LateMarkers:
    """In place of a state's own methods: a transaction ends a while after its producer was told so."""

    def __init__(self, broker: KafkaBroker) -> None:
        state = broker.state
        self._end, self._begin, self._add = state.end, state.begin_producer, state.add
        self._state = state
        self._decided: dict[str, tuple[int, int, bool]] = {}
        self._lock = threading.RLock()
        self.count = 0

    def end(self, transactional_id: str, producer: int, epoch: int, *, committed: bool) -> Any:
        with self._lock, self._state.changed:
            found = self._state._by_id.get(transactional_id)
            if found is None or (found.producer, found.epoch) != (producer, epoch):
                return self._end(transactional_id, producer, epoch, committed=committed)
            self._decided[transactional_id] = (producer, epoch, committed)
            self.count += 1
        timer = threading.Timer(LATE_SECONDS, self._write, [transactional_id])
        timer.daemon = True
        timer.start()
        return 0

    def begin_producer(self, transactional_id: str) -> tuple[int, int]:
        """It waits for the markers of what was decided."""
        self._write(transactional_id)
        return self._begin(transactional_id)

    def add(self, transactional_id: str, *arguments: Any) -> Any:
        with self._lock:
            is_ending = transactional_id in self._decided
        return CONCURRENT_TRANSACTIONS if is_ending else self._add(transactional_id, *arguments)

    def _write(self, transactional_id: str) -> None:
        with self._lock:
            found = self._decided.pop(transactional_id, None)
            if found is not None:
                producer, epoch, committed = found
                self._end(transactional_id, producer, epoch, committed=committed)


@gated
@pytest.mark.parametrize("consistency", list(Consistency))
def test_a_run_is_green_and_equal_though_readers_see_commits_late(
    make_rig: Callable[..., Rig], broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch, consistency: Consistency
) -> None:
    rig = make_rig("CREATE TABLE t (id integer PRIMARY KEY, v text)").having(
        consistency=consistency, epoch_max_changes=50, unit_max_bytes=4096
    )
    late = LateMarkers(broker)
    for name in ("end", "begin_producer", "add"):
        monkeypatch.setattr(broker.state, name, getattr(late, name))
    rig.prepare()
    for value in ("a", "b"):
        rig.write(
            f"INSERT INTO t SELECT i, '{value}' FROM generate_series(1, 100) i ON CONFLICT (id) DO UPDATE SET v = 'c'",
            "TRUNCATE t",
            f"INSERT INTO t SELECT i, '{value}' FROM generate_series(1, 100) i",
        )
        rig.run()
        rows = {id_: row["v"] for id_, row in replayed(broker.address, "feed.public.t").items()}
        assert rows == dict(rig.rows("SELECT id, v FROM t", side="source"))
        assert rig.comparison().equal
    assert late.count
