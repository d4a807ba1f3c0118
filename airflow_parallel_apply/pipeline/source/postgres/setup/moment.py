"""The source's tables at one moment of its stream: held, and seen under the snapshot of a slot that is made meanwhile.

A slot's snapshot shows exactly what committed before the slot's first change, in the catalog as in the tables. What
does not respect snapshots (TRUNCATE, a rewrite, a drop) waits for the hold, which must begin before the slot is
created.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.errors import Unavailable
from airflow_parallel_apply.pipeline.source.postgres.catalog.catalog import SourceTable
from airflow_parallel_apply.pipeline.source.postgres.catalog.own_rows import has_read, renamed
from airflow_parallel_apply.pipeline.source.postgres.holding import held_up_hint
from airflow_parallel_apply.pipeline.source.postgres.session import LOCK_TIMEOUT, Session
from airflow_parallel_apply.pipeline.source.postgres.slot.slot import PLUGIN
from airflow_parallel_apply.postgres.results import failure_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The beginning of a slot: everything that committed below `lsn` is in the snapshot, everything else in the
    stream.
    """

    lsn: int
    snapshot: str


_FAILOVER_VERSION: Final = 170000


@contextmanager
def held(session: Session, tables: Sequence[SourceTable]) -> Iterator[None]:
    """Keep the tables from being rewritten, truncated or dropped. `Unavailable`: somebody else holds one for long.
    `SourceChanged`: a name was another table's by then.
    """
    with closing(session.another()) as holding, holding.transaction():
        names = sql.SQL(", ").join(table.own_rows for table in tables)
        try:
            if tables:
                holding.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(names))
        except psycopg.errors.LockNotAvailable as error:
            raise _held_up(session, "the lock of the tables") from error
        if not has_read(holding, [table.oid for table in tables]):
            raise renamed([table.name for table in tables], op="prepare")
        yield


@contextmanager
def new_slot(session: Session, name: str, *, temporary: bool = False) -> Iterator[Moment]:
    """Make a slot; its snapshot is there until the end of the block, and so is a temporary slot."""
    with closing(session.replication()) as replication:
        # The older syntax, which version 14 knows and later ones still take. From 17 on standbys may keep a copy of the
        # slot: then a failover to one goes on with it.
        follows = not temporary and replication.info.server_version >= _FAILOVER_VERSION
        command = sql.SQL("CREATE_REPLICATION_SLOT {} {} LOGICAL {} {}").format(
            sql.Identifier(name),
            sql.SQL("TEMPORARY" if temporary else ""),
            sql.SQL(PLUGIN),
            sql.SQL("(SNAPSHOT 'export', FAILOVER)" if follows else "EXPORT_SNAPSHOT"),
        )
        result = replication.pgconn.exec_(command.as_string(replication).encode())
        if result.status != psycopg.pq.ExecStatus.TUPLES_OK:
            failure = failure_of(result)
            if isinstance(failure, psycopg.errors.LockNotAvailable):
                what = "a new slot, which waits for the transactions that are open"
                raise _held_up(session, what, by_all_databases=True) from failure
            if isinstance(failure, psycopg.errors.DuplicateObject):
                # As a pipeline of this name in another database of the server, whose first run is under way, too.
                raise Unavailable(
                    f"slot {name} was made by somebody else a moment ago",
                    op="prepare",
                    hint="It is tried again, and the next try says whose it is.",
                ) from failure
            raise failure
        high, low = (result.get_value(0, 1) or b"").decode().split("/")
        yield Moment(lsn=int(high, 16) << 32 | int(low, 16), snapshot=(result.get_value(0, 2) or b"").decode())


@contextmanager
def seen(session: Session, snapshot: str) -> Iterator[psycopg.Connection[Any]]:
    """A session that reads what the snapshot shows."""
    with closing(session.another()) as looking, looking.transaction():
        looking.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        looking.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        yield looking


def _held_up(session: Session, what: str, *, by_all_databases: bool = False) -> Unavailable:
    return Unavailable(
        f"the source {session.place} did not give {what} for {LOCK_TIMEOUT}",
        op="prepare",
        hint=held_up_hint(session.catalog(), by_all_databases=by_all_databases),
    )
