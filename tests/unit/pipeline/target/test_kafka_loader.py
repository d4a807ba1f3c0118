"""Staged messages of a Spark task, of which memory holds a few."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pyarrow as pa
import pytest

from airflow_parallel_apply.pipeline.log import open_reader
from airflow_parallel_apply.pipeline.log.commit_times import CommitTimes
from airflow_parallel_apply.pipeline.target.kafka import loader as loader_module
from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress
from airflow_parallel_apply.pipeline.target.kafka.loader import KafkaLoader
from airflow_parallel_apply.pipeline.target.kafka.staging import Staging
from tests.support.written_log import Change, append, make_log


def test_what_a_task_makes_is_written_as_it_grows_and_read_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader_module, "_MAX_MADE_BYTES", 1_000)
    url = f"file://{tmp_path}/log"
    make_log(url)
    last = append(url, 0, [[Change("I", key, str(key))] for key in range(60)])
    log = open_reader(url)
    address = KafkaAddress(servers="nowhere:1", prefix="feed", staging=f"file://{tmp_path}/staging")
    loader = KafkaLoader(
        address=address,
        pipeline="p",
        folder="p/all/t",
        relations=tuple(log.state().relations),
        commit_times=CommitTimes.of_log(log, -1, last),
    )
    rows = [batch.slice(at, 5) for batch in log.rows(-1, last, in_order=True) for at in range(0, len(batch), 5)]
    loaded = loader.load(rows, "attempt")
    assert len(loaded.tables) > 2
    assert (loaded.row_count, sum(table.inserts for table in loaded.tables)) == (60, 60)
    read = list(Staging(address, "p").read([("t", table) for table in loaded.tables]))
    assert [message.order[0] for message in read] == list(range(60))


def test_the_little_of_a_relation_waits_while_what_is_large_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    little, large = (pa.record_batch({"operation": ["insert"], "value": ["x" * length]}) for length in (1, 600))
    relations = [SimpleNamespace(relation_id=1), SimpleNamespace(relation_id=2)]
    made = MagicMock()
    made.by_relation.return_value = list(zip(relations, (little, large), strict=True))
    monkeypatch.setattr(loader_module, "_MAX_MADE_BYTES", 1_000)
    monkeypatch.setattr(loader_module, "Messages", lambda *_: made)
    monkeypatch.setattr(loader_module, "Staging", MagicMock())
    loader = KafkaLoader(address=MagicMock(), pipeline="p", folder="f", relations=(), commit_times=MagicMock())
    loaded = loader.load([little] * 6, "attempt")
    found = [(table.relation_id, table.inserts) for table in loaded.tables]
    assert found == [(2, 2), (2, 2), (2, 2), (1, 6)]
