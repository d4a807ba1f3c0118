"""Load a unit's rows into staging tables of PostgreSQL: what one attempt of one Spark task does with its rows.

One session, one transaction: it ends with everything staged or with nothing. Rows are reduced to net changes as they
stream through, so memory holds a few megabytes of COPY text for each relation and one open key.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.errors import DirectRefused, LogError, OwnershipLost, Unavailable
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import StagedTable, Unit
from airflow_parallel_apply.pipeline.target.loading import Loaded, LoadTask
from airflow_parallel_apply.pipeline.target.postgres.applying import Applying
from airflow_parallel_apply.pipeline.target.postgres.committing import DirectCommit
from airflow_parallel_apply.pipeline.target.postgres.naming import DEFAULT_SCHEMA, holder_session, staging_table
from airflow_parallel_apply.pipeline.target.postgres.positions import is_held
from airflow_parallel_apply.pipeline.target.postgres.preparing import Claim, Preparation
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.table_load import TableLoad

_logger = logging.getLogger(__name__)

_BUFFERED_BYTES: Final = 32 * 2**20
"""Bytes of all relations' COPY text that are held together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresLoader:
    """See `Loader`. `channel` None: a unit of all channels. `group`: see `Unit`. `claim`: of a part that may become a
    branch. `direct`: a unit that may be committed where it is loaded.
    """

    url: str = field(repr=False)
    pipeline: str
    channel: int | None
    token: str
    relations: tuple[Relation, ...]
    group: int | None = None
    claim: Claim | None = None
    direct: Unit | None = None
    schema: str = DEFAULT_SCHEMA

    def load(self, batches: Iterable[pa.RecordBatch], attempt: str, *, task: LoadTask | None = None) -> Loaded:
        found = _Attempt(self, attempt)
        if self.direct is not None:
            return found.commit(batches, self.direct)
        return found.load(batches) if self.claim is None else found.prepare(batches, self.claim, task)


class _Attempt:
    """Not thread-safe, used once."""

    def __init__(self, loader: PostgresLoader, attempt: str) -> None:
        self._loader = loader
        self._name = attempt
        self._relations = {relation.relation_id: relation for relation in loader.relations}
        self._session = Session(
            loader.url,
            pipeline=loader.pipeline,
            schema=loader.schema,
            name=holder_session(loader.pipeline, loader.channel, loader.token, group=loader.group),
            synchronous_commit="off",
        )
        self._loads: dict[int, TableLoad] = {}
        self._applying: Applying | None = None

    def load(self, batches: Iterable[pa.RecordBatch]) -> Loaded:
        try:
            with self._session.transaction("stage", channel=self._loader.channel, is_brief=False) as connection:
                row_count = self._stage(connection, batches)
        except Unavailable as error:
            self._require_claim(error)
            raise
        finally:
            self._session.close()
        return Loaded(tables=self._staged(), row_count=row_count)

    def prepare(self, batches: Iterable[pa.RecordBatch], claim: Claim, task: LoadTask | None) -> Loaded:
        """As `load`, but what can be applied is, in a transaction that is prepared."""
        preparation = Preparation(self._session, claim, task=task, attempt=self._name)
        self._applying = preparation
        try:
            with self._session.errors("prepare", channel=claim.channel), self._session.undone():
                adopted = preparation.adopted()
                if adopted is not None:
                    return Loaded(tables=(adopted,), row_count=sum(batch.num_rows for batch in batches))
                connection = self._session.connection()
                preparation.begin(connection)
                row_count = self._stage(connection, batches)
                tables = preparation.end(connection, self._staged(), self._loader.relations)
                return Loaded(tables=tables, row_count=row_count)
        except DirectRefused as error:
            _logger.warning("insertions were refused, the group is staged again: %s", error)
            for _ in batches:
                continue
            return Loaded(tables=preparation.refused, row_count=0)
        finally:
            # What is not prepared is rolled back.
            self._session.close()

    def commit(self, batches: Iterable[pa.RecordBatch], unit: Unit) -> Loaded:
        """As `load`, but insertions go straight into their tables, and are committed with the unit's position."""
        direct = self._applying = DirectCommit(self._session, unit)
        try:
            with self._session.errors("commit", channel=unit.channel), self._session.undone():
                if direct.is_done():
                    return Loaded(tables=direct.done, row_count=sum(batch.num_rows for batch in batches))
                connection = self._session.connection()
                connection.execute("BEGIN")
                try:
                    row_count = self._stage(connection, batches)
                    tables = direct.end(connection, self._staged(), self._loader.relations, row_count)
                except (DirectRefused, OwnershipLost, psycopg.Error):
                    # Another attempt of the same task may have been here.
                    if connection.closed or not self._is_done_by_another(connection, direct):
                        raise
                    return Loaded(tables=direct.done, row_count=sum(batch.num_rows for batch in batches))
                return Loaded(tables=tables, row_count=row_count)
        except Unavailable as error:
            self._require_claim(error)
            raise
        finally:
            self._session.close()

    def _require_claim(self, error: Unavailable) -> None:
        """Tell a session that a newer claim ended from one that a restart of the server ended. A group's stager holds
        no position that could tell: its task does. Errors: `OwnershipLost`; `Unavailable` where it is.
        """
        loader = self._loader
        if loader.group is None and not is_held(self._session, loader.channel, loader.token):
            raise OwnershipLost(
                "a newer claim took the channel", op="stage", pipeline=loader.pipeline, channel=loader.channel
            ) from error

    def _is_done_by_another(self, connection: Connection, direct: DirectCommit) -> bool:
        connection.execute("ROLLBACK")
        return direct.is_done()

    def _stage(self, connection: Connection, batches: Iterable[pa.RecordBatch]) -> int:
        row_count = 0
        for batch in batches:
            row_count += batch.num_rows
            for relation_id, rows in _by_relation(batch):
                self._staging(connection, relation_id).feed(rows)
            self._bound_memory()
        for staging in self._loads.values():
            staging.finish()
        return row_count

    def _staged(self) -> tuple[StagedTable, ...]:
        return tuple(staging.staged() for staging in self._loads.values() if staging.row_count)

    def _staging(self, connection: Connection, relation_id: int) -> TableLoad:
        if relation_id not in self._loads:
            relation = self._relations.get(relation_id)
            if relation is None:
                raise LogError(f"rows of relation {relation_id}, which the unit does not define")
            self._loads[relation_id] = TableLoad(
                connection, relation, self._loader.schema, self._staging_name(relation_id), self._applying
            )
        return self._loads[relation_id]

    def _staging_name(self, relation_id: int) -> str:
        loader = self._loader
        return staging_table(loader.pipeline, loader.channel, loader.token, self._name, relation_id, group=loader.group)

    def _bound_memory(self) -> None:
        while sum(staging.buffered_bytes for staging in self._loads.values()) > _BUFFERED_BYTES:
            max(self._loads.values(), key=lambda staging: staging.buffered_bytes).flush()


def _by_relation(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each relation, in the order they have; without a copy when there is only one."""
    if batch.num_rows == 0:
        return
    batch = _normal(batch)
    column = batch.column("relation_id")
    found = pc.unique(column).to_pylist()
    if len(found) == 1:
        yield found[0], batch
        return
    for relation_id in found:
        yield relation_id, batch.filter(pc.equal(column, relation_id))


def _normal(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Spark may send wide strings: the log's own type, without a copy where it is that."""
    for name in ("key", "values", "unsent"):
        column = batch.column(name)
        if column.type != pa.string():
            batch = batch.set_column(batch.schema.get_field_index(name), name, column.cast(pa.string()))
    return batch
