"""Load a unit's rows into staging tables of PostgreSQL: what one attempt of one Spark task does with its rows.

One session, one transaction: it ends with everything staged or with nothing. Rows are reduced to net changes as they
stream through, so memory holds a few megabytes of COPY text for each relation and one open key.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

import psycopg
import pyarrow as pa

from airflow_parallel_apply.pipeline.apply.relation_load import RelationLoads
from airflow_parallel_apply.pipeline.errors import DirectRefused, OwnershipLost, Unavailable
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import Unit
from airflow_parallel_apply.pipeline.target.loading import Loaded, LoadTask
from airflow_parallel_apply.pipeline.target.postgres.load.applying import Applying
from airflow_parallel_apply.pipeline.target.postgres.load.committing import DirectCommit
from airflow_parallel_apply.pipeline.target.postgres.load.preparing import Claim, Preparation
from airflow_parallel_apply.pipeline.target.postgres.load.table_load import TableLoad
from airflow_parallel_apply.pipeline.target.postgres.naming import holder_session, staging_table
from airflow_parallel_apply.pipeline.target.postgres.positions.positions import is_held
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session

_logger = logging.getLogger(__name__)


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

    @property
    def holder(self) -> str:
        """The name of its sessions."""
        if self.claim is not None:
            return self.claim.holder
        return holder_session(self.pipeline, self.channel, self.token, group=self.group)

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
        self._session = Session(
            loader.url,
            pipeline=loader.pipeline,
            name=loader.holder,
            synchronous_commit="off",
            definitions=lambda: loader.relations,
        )
        self._applying: Applying | None = None

    def load(self, batches: Iterable[pa.RecordBatch]) -> Loaded:
        try:
            with self._session.transaction("stage", channel=self._loader.channel, is_brief=False) as connection:
                loaded = self._stage(connection, batches)
        except Unavailable as error:
            self._require_claim(error)
            raise
        finally:
            self._session.close()
        return loaded

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
                staged = self._stage(connection, batches)
                tables = preparation.end(connection, staged.tables, self._loader.relations)
                return Loaded(tables=tables, row_count=staged.row_count)
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
                    staged = self._stage(connection, batches)
                    tables = direct.end(connection, staged.tables, self._loader.relations, staged.row_count)
                except (DirectRefused, OwnershipLost, psycopg.Error):
                    # Another attempt of the same task may have been here.
                    if connection.closed or not self._is_done_by_another(connection, direct):
                        raise
                    return Loaded(tables=direct.done, row_count=sum(batch.num_rows for batch in batches))
                return Loaded(tables=tables, row_count=staged.row_count)
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

    def _stage(self, connection: Connection, batches: Iterable[pa.RecordBatch]) -> Loaded:
        loader = self._loader

        def begin(relation: Relation) -> TableLoad:
            name = staging_table(
                loader.pipeline, loader.channel, loader.token, self._name, relation.relation_id, group=loader.group
            )
            return TableLoad(connection, relation, loader.pipeline, name, self._applying)

        loads = RelationLoads(loader.relations, begin)
        row_count = loads.stage(batches)
        return Loaded(tables=loads.staged(), row_count=row_count)
