"""Shows where the time goes inside one Spark job: the same unit, with one step more each time."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from statistics import median
from time import monotonic
from typing import Any

import pyarrow as pa

from airflow_parallel_apply.pipeline.ledger.open import open_pipeline
from airflow_parallel_apply.pipeline.ledger.protocol import LeaseRequest
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.epoch import Branch, Unit
from airflow_parallel_apply.pipeline.store.open import open_store
from airflow_parallel_apply.router.plan import plan
from airflow_parallel_apply.spark.job import build_job
from airflow_parallel_apply.spark.session import ConnectAccess, close_session, open_session
from airflow_parallel_apply.spark.stage import open_stage
from benchmarks.lanes import SparkAccess
from benchmarks.world import Database, World


def measure_inside(world: World, database: Database, spark: SparkAccess) -> dict[str, float]:
    """Seconds of each step, for a unit of all that channel 0 of 2 has."""
    config = replace(world.log, channels=2)
    log = open_reader(config.log_url)
    plan(config, database.endpoint)
    with closing(open_pipeline(database.endpoint, config.pipeline, log_url=config.log_url)) as owning:
        epochs = owning.ledger.epochs()
        owned = owning.acquire(LeaseRequest(log_id=log.identity.log_id, owner="bench", lease=config.lease))
        token = uuid.uuid4().hex
        owning.target.take(0, generation=owned.generation, token=token)
        unit = Unit(
            pipeline=config.pipeline,
            generation=owned.generation,
            kind=Branch(0),
            channels=2,
            token=token,
            after_seqno=-1,
            last_seqno=epochs[-1].last_seqno,
            row_count=sum(epoch.rows[0] for epoch in epochs),
        )
        session = open_session(spark.url, spark.session_id)
        stage = open_stage(
            access=ConnectAccess(url=spark.url, session_id=spark.session_id), config=config, target=database.endpoint
        )
        try:
            job = build_job(session, unit, open_store(config, log).branch(unit))
            empty = _time(lambda: session.range(0, 1, 1, 1).mapInArrow(_swallow, "rows bigint").toArrow())
            scanned = _time(lambda: job.counted.coalesce(1).agg({"seqno": "count"}).toArrow())
            handed = _time(lambda: job.ordered.mapInArrow(_swallow, "rows bigint").toArrow())
            staged = _time(lambda: stage.stage(unit))
        finally:
            stage.close()
            close_session(session)
    return {
        "an empty job": empty,
        "scan and filter": max(scanned - empty, 0.0),
        "values, sort, hand over to Python": max(handed - scanned, 0.0),
        "reduce and COPY in Python": max(staged - handed, 0.0),
        "the whole job": staged,
        "rows": float(unit.row_count),
    }


def _time(action: Any) -> float:
    spent = []
    for _ in range(3):
        began = monotonic()
        action()
        spent.append(monotonic() - began)
    return median(spent)


def _swallow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = sum(batch.num_rows for batch in batches)
    yield pa.record_batch([pa.array([rows])], names=["rows"])
