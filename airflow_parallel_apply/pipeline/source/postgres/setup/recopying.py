"""Tables of a pipeline that goes on, as they are at one moment of its stream: what a copy of them is made from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import uuid4

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.config import PipelineConfig
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.log.protocol import LogReader, PassedOver
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import command_line, errors, hint_of, listed, refuse
from airflow_parallel_apply.pipeline.source.postgres.catalog.catalog import SourceTable, list_tables, sends_generated
from airflow_parallel_apply.pipeline.source.postgres.catalog.described import describe_now
from airflow_parallel_apply.pipeline.source.postgres.check import pooler_findings, table_findings
from airflow_parallel_apply.pipeline.source.postgres.pending import Pending
from airflow_parallel_apply.pipeline.source.postgres.proof.observed import registered_anew
from airflow_parallel_apply.pipeline.source.postgres.proof.renaming import still_to_come, still_under
from airflow_parallel_apply.pipeline.source.postgres.session import Session
from airflow_parallel_apply.pipeline.source.postgres.setup.first_run import WITH_GENERATED
from airflow_parallel_apply.pipeline.source.postgres.setup.moment import held, new_slot, seen
from airflow_parallel_apply.pipeline.source.postgres.setup.objects import PipelineObjects, Server
from airflow_parallel_apply.pipeline.source.postgres.setup.prepare import Preparation
from airflow_parallel_apply.pipeline.source.postgres.slot.copy_marks import CopyMarks
from airflow_parallel_apply.pipeline.source.postgres.slot.slot import Slot
from airflow_parallel_apply.pipeline.source.protocol import OpenLog, SourceChanged

Name = tuple[str, str]
_PARTS: Final = """
WITH RECURSIVE part (root, oid) AS (
    SELECT t.oid, t.oid FROM unnest(%s::oid[]) AS t (oid)
    UNION ALL
    SELECT part.root, i.inhrelid
    FROM part
    JOIN pg_catalog.pg_class c ON c.oid = part.oid AND c.relkind = 'p'
    JOIN pg_catalog.pg_inherits i ON i.inhparent = part.oid AND NOT i.inhdetachpending
)
SELECT part.root::bigint, c.oid::bigint, n.nspname::text, c.relname::text
FROM part
JOIN pg_catalog.pg_class c ON c.oid = part.oid AND c.oid <> part.root
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
"""
"""The tables' partitions as the session's snapshot shows them; the server's own functions know those of now."""
_TODAY: Final = """
SELECT lost.oid::bigint, n.nspname || '.' || c.relname
FROM unnest(%s::oid[]) AS lost (oid)
JOIN pg_catalog.pg_class c ON c.oid = coalesce(pg_catalog.pg_partition_root(lost.oid), lost.oid)
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
"""
_SLOT_LETTERS: Final = 12
_WHOLE: Final = "publish = 'insert, update, delete, truncate', publish_via_partition_root = true"


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesThen:
    """The tables and their definitions where the stream goes on behind `lsn`; `snapshot` shows their rows. `register`
    makes of a log's registration and last definitions the one in which they are as they are then. `mark`: see
    `Slot.mark_copy`. `names`: of all followed tables there, by oid. `parts`: the partitions of all these, as oid,
    schema and name, by the oid of the table. What was sent under a partition's own name, since it was a table of its
    own or the publication was altered, is in the table's copy too. `undone`: what the log passes over in favour of
    copies that the source has lost, which counts no more. `gone`: tables that nobody follows any more, of which nothing
    more is to be applied.
    """

    lsn: int
    snapshot: str
    tables: tuple[SourceTable, ...]
    relations: tuple[Relation, ...]
    register: Callable[[str | None, Sequence[Relation]], str]
    mark: Callable[[str], int]
    names: Mapping[int, str]
    parts: Mapping[int, Sequence[tuple[int, str, str]]]
    undone: Sequence[PassedOver]
    gone: Sequence[PassedOver]


class Recopying:
    """Through a session of the source; its methods raise the pipeline's errors."""

    def __init__(
        self,
        session: Session,
        config: PipelineConfig,
        names: Sequence[Name],
        log: OpenLog,
        *,
        lost: Callable[[], Sequence[PassedOver]],
    ) -> None:
        """`lost`: former copies that are not at the target. One of a table that is gone can only be named."""
        self._session = session
        self._config = config
        self._names = tuple(names)
        self._lost = lost
        self._undone: tuple[PassedOver, ...] = ()
        self._gone: tuple[PassedOver, ...] = ()
        self._publication = config.stream
        slot = Slot(session, name=self._publication, publication=self._publication)
        self._mine = PipelineObjects(
            session=session,
            slot=slot,
            publication=self._publication,
            pipeline=config.pipeline,
            log_url=config.log_url,
            log=log,
        )

    def require_copyable(self) -> tuple[Relation, ...]:
        """The tables' definitions of now. Errors: `ConfigurationError` for what is in the way."""
        with self._session.errors("recopy"):
            refuse(
                pooler_findings(self._session),
                place=f"the source {self._session.place}",
                op="recopy",
                pipeline=self._config.pipeline,
            )
            server = self._mine.server()
            log = self._require_stream(server)
            # A copy of a source that went back would be there when the right one comes again.
            self._mine.slot.require_resumable(log.state().place)
            self._undone = CopyMarks(log.state(), self._config).undone(self._mine.slot, log.state())
            tables = self._find()
            self._require_own_names(tables, log.state().relations)
            self._require_undone(tables)
            if not tables:
                return ()
            connection = self._session.catalog()
            found = errors(table_findings(connection, self._publication, tables, self._config.tables, server.user))
            if found:
                what = "; ".join(finding.what for finding in found)
                raise self._wrong(f"the source {self._session.place}: {what}", hint_of(found))
            hidden = [table.name for table in tables if not table.can_select]
            if hidden:
                raise self._wrong(
                    f"the source {self._session.place} gives no right to read {listed(hidden)}",
                    "Grant SELECT, and USAGE on the schema.",
                )
            return describe_now(self._session.catalog(), self._publication, tables)

    @property
    def gone(self) -> tuple[PassedOver, ...]:
        """See `TablesThen`; known once the tables were looked for."""
        return self._gone

    def followed(self) -> tuple[Name, ...]:
        """Everything that the pipeline follows once these tables are copied. Errors: the pipeline's."""
        with self._session.errors("recopy"):
            tables = list_tables(self._session.catalog(), self._publication)
            wanted = self._find()
        followed = (*(table for table in tables if table.is_published), *wanted)
        return tuple(dict.fromkeys((table.schema, table.table) for table in followed))

    @contextmanager
    def then(self) -> Iterator[TablesThen]:
        """Publish the tables as a whole, and hold them from a moment on that comes behind it. `SourceChanged`."""
        with self._session.errors("recopy"):
            tables = self._find()
            name = f"{self._publication[: 62 - _SLOT_LETTERS]}_{uuid4().hex[:_SLOT_LETTERS]}"
            with held(self._session, tables):
                self._publish(tables)
                # What began before the publication was as it is now ends before the slot begins.
                with (
                    new_slot(self._session, name, temporary=True) as moment,
                    seen(self._session, moment.snapshot) as connection,
                ):
                    found = {table.oid: table for table in list_tables(connection, self._publication)}
                    now = tuple(found[table.oid] for table in tables if table.oid in found)
                    if [table.name for table in now] != [table.name for table in tables]:
                        raise SourceChanged(
                            "tables were renamed or dropped while they were locked",
                            op="recopy",
                            pipeline=self._config.pipeline,
                            hint="Run it again.",
                        )
                    names = {oid: table.name for oid, table in found.items() if table.is_published}
                    yield TablesThen(
                        lsn=moment.lsn,
                        snapshot=moment.snapshot,
                        tables=now,
                        relations=describe_now(connection, self._publication, now),
                        register=partial(self._registered, connection, [table.oid for table in now]),
                        mark=self._mine.slot.mark_copy,
                        names=names,
                        parts=self._parts(connection, [*names]),
                        undone=self._undone,
                        gone=self._gone,
                    )

    def _registered(
        self, connection: psycopg.Connection[Any], oids: Sequence[int], text: str | None, known: Sequence[Relation]
    ) -> str:
        return registered_anew(connection, self._publication, text, oids, known)

    def _parts(self, connection: psycopg.Connection[Any], oids: Sequence[int]) -> dict[int, list[tuple[int, str, str]]]:
        found: dict[int, list[tuple[int, str, str]]] = {}
        for root, *part in connection.execute(_PARTS, [oids]).fetchall():
            found.setdefault(root, []).append((part[0], part[1], part[2]))
        return found

    def _require_stream(self, server: Server) -> LogReader:
        record = self._mine.record(server)
        if record is None or not record.is_ready:
            raise self._wrong(
                f"pipeline {self._config.pipeline} has no stream yet at the source {self._session.place}",
                "Its first run copies its tables.",
            )
        log = self._mine.known_log(server, record)
        self._mine.slot.reached_lsn(log.state().place, op="recopy")
        return log

    def _find(self) -> tuple[SourceTable, ...]:
        there: dict[str, list[SourceTable]] = {}
        for table in list_tables(self._session.catalog(), self._publication):
            there.setdefault(table.name, []).append(table)
        names = [*dict.fromkeys(".".join(name) for name in self._names)]
        named = [name for name in names if name in there]
        gone = [name for name in names if name not in there]
        published = {name for name, found in there.items() if any(table.is_published for table in found)}
        self._gone = self._passed_over(gone, named, published) if gone else ()
        unclear = [name for name in named if len(there[name]) > 1]
        if unclear:
            raise self._wrong(
                f"the source {self._session.place} has several tables that are called {listed(unclear)}, with a dot in "
                "the name of one or its schema",
                "Rename one.",
            )
        return tuple(there[name][0] for name in named)

    def _passed_over(self, gone: Sequence[str], named: Sequence[str], published: Set[str]) -> tuple[PassedOver, ...]:
        """Tell what is to be passed over of these, which are no tables that can be followed. Require that the log knows
        them, and that what became of their tables is copied, too, if it is followed. Those of which a copy was lost are
        left out.
        """
        lost = {f"{one.schema}.{one.table}": one.oid for one in (*self._undone, *self._lost())}
        log = self._mine.log()
        logged = {relation.name: relation for relation in log.state().relations} if log is not None else {}
        known = {name: logged[name].oid for name in gone if name in logged}
        oids = {name: oid for name in gone if (oid := lost.get(name) or known.get(name)) is not None}
        today = dict(self._session.catalog().execute(_TODAY, [[*oids.values()]]).fetchall())
        left = {name: today[oid] for name, oid in oids.items() if today.get(oid) in published - {*named}}
        if left:
            parts = sorted({*left.values()})
            raise self._wrong(
                f"what was {listed([*left])} is part of {listed(parts)} now, under another name or as a partition",
                f"Copy it with that: `{command_line('recopy', [*named, *parts])}`.",
            )
        missing = [name for name in gone if name not in oids]
        if missing:
            raise self._wrong(
                f"the source {self._session.place} has no table {listed(missing)} that can be followed",
                "Name tables as schema.table, a partitioned one by its root.",
            )
        return tuple(
            PassedOver(schema=logged[name].schema, table=logged[name].table, below_offset=0, recopy_id="", oid=oid)
            for name, oid in oids.items()
            if lost.get(name) is None
        )

    def _require_undone(self, tables: Sequence[SourceTable]) -> None:
        """Require that these include each table of which the log passed over changes in favour of a copy that the
        source lost. Such a table may have been a partition then.
        """
        oids, names = {one.oid for one in self._undone}, {f"{one.schema}.{one.table}" for one in self._undone}
        found = [
            table
            for table in list_tables(self._session.catalog(), self._publication)
            if table.is_published and (table.oid in oids or table.name in names)
        ]
        copied = {table.oid for table in tables}
        left = [table.name for table in found if table.oid not in copied]
        if left:
            named = [table.name for table in tables]
            raise self._wrong(
                "the source was restored from an older copy, or replaced by a server that is behind: it lost what "
                f"tables were copied anew from, and changes of {listed(left)} were passed over in favour of that",
                f"Copy them together: `{command_line('recopy', [*named, *left])}`.",
            )

    def _require_own_names(self, tables: Sequence[SourceTable], relations: Sequence[Relation]) -> None:
        """The copy of a table would replace, and later be renamed as, the one that had its name before."""
        known = list_tables(self._session.catalog(), self._publication)
        for table in tables:
            former = None if table.is_published else still_under(relations, known, table)
            if former is not None and former not in tables:
                raise self._wrong(
                    f"{former.name} was called {table.name} before, and the target's {table.name} still is that table",
                    f"Leave {table.name} out with an exclude pattern until a run has followed the rename and is green; "
                    "then take it in again, and copy it.",
                )
        pending = Pending(self._session.catalog(), self._mine.slot.name, self._publication)
        for name, other in still_to_come(pending, relations, known).items():
            if other not in tables and any((table.schema, table.table) == name for table in tables):
                named = sorted(table.name for table in (*tables, other))
                raise self._wrong(
                    f"{other.name} was called {'.'.join(name)} before, and has changes of then that no run has read",
                    f"Copy them together: `{command_line('recopy', named)}`, with --create-tables for what the target "
                    f"lacks. Or leave {'.'.join(name)} out with an exclude pattern until a run is green; then take it "
                    "in again, and copy it.",
                )

    def _publish(self, tables: Sequence[SourceTable]) -> None:
        """Publish the tables without conditions and column lists. What is so already needs no right of ours.

        The record, which says that an alteration is ours, is not written with the tables: after a crash they must be in
        doubt, since their rows are not copied.
        """
        connection, publication = self._session.catalog(), sql.Identifier(self._publication)
        query = (
            "SELECT r.prrelid FROM pg_catalog.pg_publication_rel r "
            "JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid WHERE p.pubname = %s "
            "AND to_jsonb(r) ->> 'prqual' IS NULL AND to_jsonb(r) ->> 'prattrs' IS NULL"
        )
        alter = sql.SQL("ALTER PUBLICATION {} ").format(publication)
        with Preparation(self._session, self._mine.slot, self._publication, self._config).locked(connection):
            if any(table.generated for table in tables) and not sends_generated(connection, self._publication, ()):
                server = self._mine.server()
                record = self._mine.record(server)
                with connection.transaction():
                    # Behind somebody else's alteration the other tables stay in doubt.
                    log = None if record is None else self._mine.known_log(server, record).state()
                    if record is not None and log is not None and self._mine.is_unaltered(log.registration):
                        self._mine.set_record(record)
                    connection.execute(alter + sql.SQL("SET ({})").format(sql.SQL(WITH_GENERATED)))
            whole = {oid for (oid,) in connection.execute(query.encode(), [self._publication])}
            published = {table.oid for table in list_tables(connection, self._publication) if table.is_published}
            with connection.transaction():
                if published <= {table.oid for table in tables}:
                    # What the publication left out of any table is in the copy of all of them.
                    connection.execute(alter + sql.SQL("SET ({})").format(sql.SQL(_WHOLE)))
                for table in tables:
                    if table.oid in whole:
                        continue
                    name = sql.SQL("ONLY {}").format(table.identifier)
                    if table.oid in published:
                        connection.execute(alter + sql.SQL("DROP TABLE {}").format(name))
                    connection.execute(alter + sql.SQL("ADD TABLE {}").format(name))

    def _wrong(self, what: str, hint: str) -> ConfigurationError:
        return ConfigurationError(what, op="recopy", pipeline=self._config.pipeline, hint=hint)
