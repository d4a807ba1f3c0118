"""Detects writes of the target's triggers and rules to followed tables while changes are applied: they stop the run.

A trigger behind the row may change it, its neighbours, or another followed table, at once or at the end of the
transaction, and no statement of ours would show it. The server counts what a transaction writes to each table: so much
as was applied, and not a row more; to a table of another pipeline, which brings what is written there, none. Nothing is
counted where nothing of the target's acts on the rows that come.

Source: `pg_stat_get_xact_tuples_*`. They count this session's rows that are not yet reported, so two readings inside
one transaction are compared. An update that moves a row to another partition counts as a deletion and an insertion
there: of what each table is to have, (inserted - deleted) and (inserted + updated) are compared, which such updates
leave as they are, and which no other writes can. What a trigger takes back itself, where it catches an error, counts as
written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

from airflow_parallel_apply.pipeline.errors import ConfigurationError, Conflict, ConflictReason, TargetError
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.guards import (
    changed_others,
    require_no_acting_references,
)
from airflow_parallel_apply.pipeline.target.postgres.merge.cascades import ActingKey, find_acting_keys
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.postgres.arrays import named
from airflow_parallel_apply.postgres.filled import filled
from airflow_parallel_apply.postgres.quoting import quoted


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Rows of one table, its partitions' included."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0

    def __add__(self, other: Written) -> Written:
        return Written(
            inserted=self.inserted + other.inserted,
            updated=self.updated + other.updated,
            deleted=self.deleted + other.deleted,
        )

    def __sub__(self, other: Written) -> Written:
        return Written(
            inserted=self.inserted - other.inserted,
            updated=self.updated - other.updated,
            deleted=self.deleted - other.deleted,
        )

    @property
    def net(self) -> int:
        """How many rows more it has."""
        return self.inserted - self.deleted

    @property
    def across_partitions(self) -> tuple[int, int]:
        """The same, however many of the updated rows came into other partitions."""
        return self.net, self.inserted + self.updated


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """The counts and files of one table. `files`: the file of each of its parts, by oid. Rows that go with their file,
    as by TRUNCATE, are not counted. `locked`: tables that nobody but this transaction can have given another file, as
    VACUUM FULL does, or dropped.
    """

    written: Written
    files: Mapping[str, int | None]
    locked: Collection[str]

    def keeps_files_of(self, before: _Reading) -> bool:
        """True if no part lost its rows here, or became another one; new ones do no harm."""
        return all(
            part not in self.locked or (part in self.files and self.files[part] == file)
            for part, file in before.files.items()
        )


class SideWrites:
    """Counts the writes of one transaction. `followed`: schema and name of each of the pipeline's tables. `only_adds`:
    rows are inserted and tables truncated, so no foreign key changes any. `colocation`: see `Routing`. Counts from the
    first guarded table on.
    """

    def __init__(
        self,
        connection: Connection,
        session: Session,
        *,
        followed: Callable[[], Collection[tuple[str, str]]],
        as_replica: bool,
        only_adds: bool = False,
        colocation: Sequence[Collection[str]] = (),
        is_channel: bool = False,
    ) -> None:
        self._connection = connection
        self._pipeline = session.pipeline
        self._followed = followed
        self._as_replica = as_replica
        self._keys_act = not (as_replica or only_adds)
        self._colocation = colocation
        self.is_channel = is_channel
        """True where the rows are one channel's, or each channel's are behind a seqno of its own."""
        self._guarded: dict[int, TargetTable] = {}
        self._acting: dict[int, dict[str, ActingKey]] = {}
        """The foreign keys that change a table's rows by themselves, as the source's have done, by name."""
        self._acted: dict[int, int] = {}
        """Rows more than were applied that such a table got so far. The log has what the source's keys did behind what
        set them off, perhaps behind a statement or a new definition.
        """
        self._seen: dict[int, TargetTable] = {}
        """All that were guarded."""
        self._names: dict[int, str] = {}
        self._others: dict[int, str] = {}
        """The pipelines that write to those tables to which this one does not."""
        self._tables: Collection[int] = ()
        self._before: Mapping[int, _Reading] = {}
        self._ours: dict[int, Written] = {}

    def begin(self, tables: Sequence[TargetTable]) -> None:
        """Before the first row of these is written. Errors: `ConfigurationError` where the server counts nothing;
        `TargetError` for foreign keys that act on a replica's rows; psycopg's own.
        """
        if self._as_replica:
            require_no_acting_references(self._connection, tables)
        guarded = [table for table in tables if table.is_guarded(as_replica=self._as_replica)]
        if not self._tables and (guarded or self._may_cascade(tables)):
            if self._connection.execute("SHOW track_counts").fetchone() != ("on",):
                raise ConfigurationError(
                    "triggers, rules or foreign keys of the target act on applied rows, and what they write is not "
                    "counted",
                    table=tables[0].relation.name,
                    hint="Set track_counts to on at the target, as it is by default.",
                )
            self._tables = self._find_tables(tables)
            self._before = self._read()
        self._guarded.update((table.oid, table) for table in guarded)
        self._seen.update(self._guarded)

    def count(self, table: TargetTable, written: Written) -> None:
        """Add what was applied to a table, as the server's counts of changed rows say."""
        if self._tables:
            self._ours[table.oid] = self._ours.get(table.oid, Written()) + written

    def counts_updates_of(self, table: TargetTable) -> bool:
        """False of a table that foreign keys of the target change by themselves."""
        return table.oid not in self._acting

    def let_deferred_act(self) -> None:
        """Triggers that wait for the transaction's end. Errors: psycopg's own, and what they raise."""
        if not self._guarded:
            return
        if self._as_replica:
            # Of a replica nothing else waits.
            self._connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            return
        query = statement("side_writes", "deferred_triggers")
        names = self._connection.execute(query, {"oids": list(self._guarded)}).fetchall()
        if names:
            listed = sql.SQL(", ").join(sql.Identifier(*name) for name in names)
            self._connection.execute(sql.SQL("SET CONSTRAINTS {} IMMEDIATE").format(listed))

    def explain_missing(self) -> None:
        """Rather than what is missing, tell which trigger or rule took it away. Errors: as `require_none`."""
        if self._guarded:
            self.require_none()
            self.require_nothing_left()

    def require_none(self, *, truncated: Sequence[TargetTable] = ()) -> None:
        """Compare, once the deferred triggers have acted; then counting begins anew, since a TRUNCATE or DDL may come,
        which take counts back. `truncated`: by the step that ends here. Errors: `TargetError` that names a table;
        psycopg's own.
        """
        if not self._tables:
            return
        self.let_deferred_act()
        empty = {table.oid for table in truncated}
        for table, has_rows in zip(
            truncated, filled(self._connection, [one.own_rows for one in truncated]), strict=True
        ):
            if has_rows:
                raise self._error(table.oid)
        for oid, after in self._read().items():
            before, ours = self._before[oid], self._ours.get(oid, Written())
            written = after.written - before.written
            if oid in empty:
                self._acted.pop(oid, None)
            elif not after.keeps_files_of(before):
                raise self._error(oid)
            elif oid in self._acting and oid not in self._others and not self._is_apart(oid):
                # What a key updates the log brings again, and what it deletes, too, which finds it done.
                self._acted[oid] = self._acted.get(oid, 0) + written.net - ours.net
            elif written.across_partitions != ours.across_partitions:
                raise self._error(oid, may_be_keys=True)
        self._guarded.clear()
        self._ours.clear()
        self._tables = ()

    def require_nothing_left(self) -> None:
        """Compare what foreign keys of the target have deleted, at the transaction's end. Errors: `TargetError`."""
        for oid, rows in self._acted.items():
            if rows:
                raise self._error(oid, may_be_keys=True)

    def _is_apart(self, oid: int) -> bool:
        """True if keys that are younger than the routing change the table's rows: its channel may be ahead of what set
        the keys off, and would not bring the rows again.
        """
        parents = frozenset[int]().union(*(key.parents for key in self._acting.get(oid, {}).values()))
        group = next((tables for tables in self._colocation if self._names[oid] in tables), ())
        return self.is_channel and any(name not in group for at, name in self._names.items() if at in parents)

    def _may_cascade(self, tables: Sequence[TargetTable]) -> bool:
        """True if foreign keys of the target may change rows beside those of these tables that change."""
        if any(self._acted.values()):
            return True
        if not self._keys_act or not any(table.fires for table in tables):
            return False
        oids = {table.oid for table in tables}
        return any(not key.parents.isdisjoint(oids) for key in find_acting_keys(self._connection))

    def _find_tables(self, tables: Sequence[TargetTable]) -> Collection[int]:
        names = {*self._followed(), *((table.relation.schema, table.relation.table) for table in tables)}
        for key in find_acting_keys(self._connection) if self._keys_act else ():
            for child in key.children:
                self._acting.setdefault(child, {})[key.name] = key
        found = self._connection.execute(
            statement("side_writes", "tables"), {"pipeline": self._pipeline, **named(names)}
        ).fetchall()
        self._names.update((oid, name) for oid, name, _ in found)
        self._others = {oid: pipeline for oid, _, pipeline in found if pipeline is not None}
        return [oid for oid, *_ in found]

    def _read(self) -> dict[int, _Reading]:
        found = self._connection.execute(statement("side_writes", "written"), {"oids": list(self._tables)})
        return {
            oid: _Reading(
                written=Written(inserted=inserted, updated=updated, deleted=deleted), files=files, locked=locked
            )
            for oid, inserted, updated, deleted, files, locked in found
        }

    def _error(self, oid: int, *, may_be_keys: bool = False) -> TargetError:
        other = self._others.get(oid)
        acts = oid in self._acting and not self._seen
        error = self._of_keys(oid, other) if acts else self._of_triggers(oid, other)
        if other is not None or not (may_be_keys and self._is_apart(oid)):
            return error
        # Another channel brings what the keys did, or has done so.
        return Conflict(error.message, reason=ConflictReason.FOREIGN_KEY, table=error.table, hint=error.hint)

    def _of_keys(self, oid: int, other: str | None) -> TargetError:
        acting = self._acting[oid]
        names = ", ".join(sorted(acting))
        commands = "; ".join(
            f"ALTER TABLE {key.child_name} DROP CONSTRAINT {quoted(key.name)}" for key in acting.values()
        )
        return TargetError(
            f"foreign keys of the target changed rows of {self._names[oid]} that "
            f"{'the source did not change' if other is None else f'pipeline {other} brings'}: {names}",
            table=self._names[oid],
            hint=f"Run {commands} at the target, as the table's owner; then run again. What the source's own keys "
            "do is sent.",
        )

    def _of_triggers(self, oid: int, other: str | None) -> TargetError:
        return changed_others(
            self._connection,
            list(self._seen.values()),
            changed=self._names[oid],
            other=other,
            as_replica=self._as_replica,
        )
