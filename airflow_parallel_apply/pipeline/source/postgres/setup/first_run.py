"""The first run's work at a PostgreSQL source: publication, slot and snapshot, in the order of `objects`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import listed
from airflow_parallel_apply.pipeline.source.postgres.catalog.catalog import (
    SourceTable,
    list_tables,
    matching,
    with_rows,
)
from airflow_parallel_apply.pipeline.source.postgres.catalog.described import describe_now
from airflow_parallel_apply.pipeline.source.postgres.catalog.own_rows import has_read, renamed
from airflow_parallel_apply.pipeline.source.postgres.catalog.shape import look_then, published
from airflow_parallel_apply.pipeline.source.postgres.lsn import lsn_text
from airflow_parallel_apply.pipeline.source.postgres.proof.observed import observe
from airflow_parallel_apply.pipeline.source.postgres.proof.truncations import unwatch, watch
from airflow_parallel_apply.pipeline.source.postgres.setup.moment import Moment, held, new_slot, seen
from airflow_parallel_apply.pipeline.source.postgres.setup.objects import PipelineObjects, Record
from airflow_parallel_apply.pipeline.source.protocol import Look, Snapshot, SourceChanged

WITH_GENERATED: Final = "publish_generated_columns = stored"
"""Option of a publication with a table that needs it, see `SourceTable.generated`; it holds for all its tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRun:
    """One attempt, or one that takes up after an attempt that died. Its methods raise the drivers' errors, too."""

    objects: PipelineObjects
    config: PipelineConfig
    followed: Sequence[SourceTable]

    def require_rows(self) -> None:
        """Require of the tables' rows what the pipeline's start demands. Errors: `ConfigurationError`."""
        if self.config.start is Start.EQUAL:
            return
        hidden = [table.name for table in self.followed if not table.can_select]
        if hidden:
            raise self._wrong(f"gives no right to read {listed(hidden)}", "Grant SELECT, and USAGE on the schema.")
        if self.config.start is Start.EMPTY:
            self._require_empty(self._catalog())

    @contextmanager
    def begin(self, log_id: str) -> Iterator[Snapshot]:
        """See `Preparing.begin`. The publication's comment is the record."""
        self.require_rows()
        mine = self.objects
        if mine.slot.state() is not None:
            mine.slot.drop()
        with self._unless_renamed():
            self._publish(log_id)
        with self._new_stream(log_id) as snapshot:
            yield snapshot
        mine.set_record(Record(log_id=log_id, is_ready=True))

    def _publish(self, log_id: str) -> None:
        """In one transaction, so that a publication without our comment is always somebody else's."""
        connection, publication = self._catalog(), sql.Identifier(self.objects.publication)
        with connection.transaction():
            connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(publication))
            connection.execute(
                sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true{})").format(
                    publication,
                    sql.SQL(", ").join(sql.SQL("ONLY {}").format(table.identifier) for table in self.followed),
                    sql.SQL(", " + WITH_GENERATED if any(table.generated for table in self.followed) else ""),
                )
            )
            self.objects.set_record(Record(log_id=log_id, is_ready=False))
            self._watch_partitions(connection)

    def _watch_partitions(self, connection: psycopg.Connection[Any]) -> None:
        """Before there is a slot, which reads the publications as they were when its changes were made."""
        publication = self.objects.publication
        unwatch(connection, publication)
        watch(connection, publication, observe(connection, publication).registered())

    @contextmanager
    def _new_stream(self, log_id: str) -> Iterator[Snapshot]:
        """The slot, and what it does not bring.

        Its snapshot shows the tables exactly as they were then: a row in there is never captured, so either there is
        none, or it is copied. So do the definitions come from there, which its first changes are read with.
        """
        session, slot = self.objects.session, self.objects.slot
        # Who says that both sides are equal need not be able to read the tables.
        held_tables = [] if self.config.start is Start.EQUAL else self.followed
        with ExitStack() as stack:
            with self._unless_renamed():
                stack.enter_context(held(session, held_tables))
            moment = stack.enter_context(new_slot(session, slot.name))
            try:
                yield self._seen(moment, log_id)
                if slot.state() is None:
                    raise self.objects.missing(f"slot {slot.name} went while it was made")
            except BaseException as error:
                self._withdraw(error)
                raise

    def _seen(self, moment: Moment, log_id: str) -> Snapshot:
        publication = self.objects.publication
        with seen(self.objects.session, moment.snapshot) as connection:
            relations = self._definitions(connection)
            seen_then = Look(
                registration=observe(connection, publication).registration().to_text(),
                registered_offset=moment.lsn,
                sightings=tuple(look_then(connection, published(connection, publication), moment.lsn)),
            )
            if self.config.start is Start.EMPTY:
                self._require_empty(connection)
                if not has_read(connection, [table.oid for table in self.followed]):
                    raise renamed([table.name for table in self.followed], op="prepare")
        return Snapshot(
            name=moment.snapshot,
            log_id=log_id,
            offset=moment.lsn,
            relations=relations,
            look=seen_then,
            made=self._made(moment),
        )

    def _made(self, moment: Moment) -> tuple[str, ...]:
        mine = self.objects
        made = [
            f"Created publication {mine.publication} for {len(self.followed)} tables at {mine.session.place}.",
            f"Created slot {mine.slot.name} at {lsn_text(moment.lsn)}; from now on the server keeps WAL for it.",
        ]
        keyless = [
            table.name for table in self.followed if table.replica_identity in "dn" and not table.has_primary_key
        ]
        if keyless:
            made.append(
                f"Tables without a key take inserts only; the server now refuses their updates: {listed(keyless)}."
            )
        return tuple(made)

    def _definitions(self, connection: psycopg.Connection[Any]) -> tuple[Relation, ...]:
        """The definitions with which the stream begins. `SourceChanged` if other tables were listed, or published."""
        mine = self.objects
        tables = list_tables(connection, mine.publication)
        listed_then = matching(tables, self.config.tables)
        relations = describe_now(connection, mine.publication, listed_then)
        published_then = [table for table in tables if table.is_published]
        followed = {(table.oid, table.name) for table in self.followed}
        changed = {
            name
            for then in (listed_then, published_then)
            for _, name in followed ^ {(one.oid, one.name) for one in then}
        }
        if changed:
            raise SourceChanged.in_first_run(changed, place=mine.session.place, pipeline=self.config.pipeline)
        return relations

    @contextmanager
    def _unless_renamed(self) -> Iterator[None]:
        """A lock that is waited for is that of a name. Errors: `SourceChanged` where a table that was listed has
        another one by then, or is gone.
        """
        try:
            yield
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
            mine = self.objects
            now = {table.oid: table.name for table in list_tables(self._catalog(), mine.publication)}
            changed = {table.name for table in self.followed if now.get(table.oid) != table.name}
            if not changed:
                raise
            raise SourceChanged.in_first_run(
                changed, place=mine.session.place, pipeline=self.config.pipeline
            ) from error

    def _withdraw(self, error: BaseException) -> None:
        """Remove a slot that nobody will read, so that it does not hold back the source's WAL. If even that fails, the
        next run does it: the publication says that this run did not come to its end.
        """
        with suppress(psycopg.Error):
            self.objects.slot.drop()
            # Beside a log the publication says whose it is.
            if isinstance(error, ConfigurationError) and self.objects.log() is None:
                publication = sql.Identifier(self.objects.publication)
                self._catalog().execute(sql.SQL("DROP PUBLICATION {}").format(publication))
                unwatch(self._catalog(), self.objects.publication)

    def _require_empty(self, connection: psycopg.Connection[Any]) -> None:
        names = with_rows(connection, self.followed)
        if names:
            raise self._wrong(
                f"has tables with rows, and start=empty takes none: {listed(names)}",
                "Use start=copy, or start=equal if the target holds the same rows.",
            )

    def _wrong(self, what: str, hint: str) -> ConfigurationError:
        place = self.objects.session.place
        return ConfigurationError(f"the source {place} {what}", op="prepare", pipeline=self.config.pipeline, hint=hint)

    def _catalog(self) -> psycopg.Connection[Any]:
        return self.objects.session.catalog()
