"""Observes a pipeline's publication and its tables in the catalog of now: `observe`, two statements for any number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, Final

import psycopg

from airflow_parallel_apply.pipeline.log.protocol import LogState
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.sighting import Sighting
from airflow_parallel_apply.pipeline.source.postgres.proof.registration import Partition, RegisteredTable, Registration
from airflow_parallel_apply.pipeline.source.postgres.proof.truncations import watch_name
from airflow_parallel_apply.pipeline.source.postgres.session import Session, statement
from airflow_parallel_apply.pipeline.source.protocol import Look
from airflow_parallel_apply.postgres.arrays import named, numbers

_FIRST_WITH_SCHEMAS: Final = 150000


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedTable:
    """A table that is published or asked for. `has_filter`, `has_list`: of its entry in the publication."""

    registered: RegisteredTable
    has_filter: bool
    has_list: bool


@dataclass(frozen=True, kw_only=True)
class Observed:
    """`horizon`: below this transaction id everything was over before the catalog was read. `publication`: the `xmin`
    of it; None where it is gone, and nothing else is known. `ours`: the transaction of our last change to it. `wrong`:
    what it should send and does not, or the other way round, for people. `schemas`: those that it publishes whole.
    """

    server: str
    horizon: int
    publication: int | None
    ours: int | None
    wrong: tuple[str, ...]
    schemas: tuple[str, ...]
    tables: Mapping[int, ObservedTable]

    @cached_property
    def by_name(self) -> Mapping[str, ObservedTable]:
        """The same tables; a name is one table's at a time."""
        return {table.registered.name: table for table in self.tables.values()}

    @cached_property
    def attached(self) -> frozenset[int]:
        """The oids of partitions of published tables, be they published themselves or not."""
        roots = (table.registered for table in self.tables.values() if table.registered.membership is not None)
        return frozenset(part.oid for root in roots for part in root.partitions)

    def registered(self) -> tuple[RegisteredTable, ...]:
        """The published tables as they are now, by oid."""
        members = [table.registered for table in self.tables.values() if table.registered.membership is not None]
        return tuple(sorted(members, key=lambda table: table.oid))

    def is_unaltered(self, known: Iterable[RegisteredTable]) -> bool:
        """True if nobody but us has altered the publication since these tables were registered."""
        then = {table.publication for table in known if not table.is_entering}
        return self.ours == self.publication or then <= {self.publication}

    def registration(self) -> Registration:
        """All published tables, taken on trust."""
        return Registration(server=self.server, tables=self.registered(), horizon=self.horizon)


def observe(connection: psycopg.Connection[Any], publication: str, known: Sequence[RegisteredTable] = ()) -> Observed:
    """`known`: tables that are asked for by oid and name, whether they are published or not. Errors: psycopg's own."""
    found = connection.execute(statement("publication"), {"publication": publication}).fetchone()
    if found is None:
        return Observed(server="", horizon=0, publication=None, ours=None, wrong=(), schemas=(), tables={})
    server, xmin, ours, unpublished, via_root, horizon = found
    wrong = [f"does not publish {', '.join(unpublished)}"] if unpublished else []
    if not via_root:
        wrong.append("does not publish partitions as their root")
    schemas = _whole_schemas(connection, publication)
    if schemas:
        wrong.append("publishes whole schemas")
    rows = connection.execute(
        statement("observed"),
        {
            "publication": publication,
            "watch": watch_name(publication),
            "oids": numbers(table.oid for table in known),
            **named((table.schema, table.table) for table in known),
        },
    ).fetchall()
    tables = [_table(list(group), xmin) for _, group in groupby(rows, key=lambda row: row[0])]
    return Observed(
        server=server,
        horizon=horizon,
        publication=xmin,
        ours=ours,
        wrong=tuple(wrong),
        schemas=schemas,
        tables={table.registered.oid: table for table in tables},
    )


def observe_now(session: Session, publication: str, known: Sequence[RegisteredTable]) -> Observed:
    """As `observe`, of this moment. Errors: psycopg's own."""
    tables = tuple(known)
    return session.answer(
        ("observed", publication, tables), lambda connection: observe(connection, publication, tables)
    )


def registered_anew(
    connection: psycopg.Connection[Any],
    publication: str,
    text: str | None,
    oids: Iterable[int],
    known: Iterable[Relation],
) -> str:
    """The registration for a log once these tables were copied as this session sees them. `text`: its present
    registration. `known`: the log's last definition of each table. Errors: psycopg's own.
    """
    now = observe(connection, publication)
    if text is None:
        return now.registration().to_text()
    wanted = {*oids}
    copied = [table for table in now.registered() if table.oid in wanted]
    names = {table.name for table in copied}
    # Of one that is not followed any more the target has no table of its own from here on.
    former = {relation.oid for relation in known if relation.oid is not None and relation.name in names}
    return Registration.from_text(text).having(*copied, instead_of=former - now.tables.keys()).to_text()


def entering_look(tables: Sequence[RegisteredTable], sightings: tuple[Sighting, ...], lsn: int, log: LogState) -> Look:
    """The log's registration with tables that are about to be published, whose commits count from an LSN on."""
    if log.registration is None:
        return Look()
    known = Registration.from_text(log.registration)
    registration = known.entering(tables, lsn, captured_lsn=log.captured_offset)
    return Look(registration=registration.to_text(), sightings=sightings)


def unborn(connection: psycopg.Connection[Any], partitions: Iterable[Partition]) -> frozenset[int]:
    """Those that were not made as partitions of what they are in now, but attached, be it long after they were made."""
    oids = [partition.oid for partition in partitions]
    born = connection.execute(statement("born"), {"oids": numbers(oids)}).fetchall() if oids else []
    return frozenset(oids) - {oid for (oid,) in born}


def _table(rows: Sequence[Sequence[Any]], publication: int) -> ObservedTable:
    whole, *parts = rows
    _, oid, _, _, schema, table, kind, is_partition, filenode, membership, has_filter, has_list, *more = whole
    watched, touched, versions, labels, attributes, links, _ = more
    registered = RegisteredTable(
        oid=oid,
        schema=schema,
        table=table,
        kind=kind,
        is_partition=is_partition,
        membership=membership,
        publication=publication,
        touched=touched,
        watched=watched,
        filenode=filenode,
        versions=tuple(versions),
        labels=tuple((oid, label, version) for oid, label, version in labels or ()),
        attributes=tuple((oid, numbers) for oid, numbers in attributes or ()),
        links=tuple((child, parent, link) for child, parent, link in links or ()),
        partitions=tuple(
            Partition(
                oid=oid,
                parent=parent,
                schema=schema,
                table=table,
                kind=kind,
                link=link,
                filenode=filenode,
                watched=watched,
                is_unlogged=is_unlogged,
            )
            for _, oid, parent, link, schema, table, kind, _, filenode, *_, watched, _, _, _, _, _, is_unlogged in parts
        ),
    )
    return ObservedTable(registered=registered, has_filter=has_filter, has_list=has_list)


def _whole_schemas(connection: psycopg.Connection[Any], publication: str) -> tuple[str, ...]:
    if connection.info.server_version < _FIRST_WITH_SCHEMAS:
        return ()
    rows = connection.execute(
        "SELECT n.nspname FROM pg_publication_namespace s JOIN pg_publication p ON p.oid = s.pnpubid "
        "JOIN pg_namespace n ON n.oid = s.pnnspid WHERE p.pubname = %s ORDER BY 1",
        [publication],
    )
    return tuple(name for (name,) in rows)
