"""Copying tables anew while their pipeline stays what it is: the remedy where the stream cannot tell their rows.

One transaction of the target replaces the rows by those that a snapshot of the source shows, and one manifest of the
log passes over the tables' changes below it, captured or not::

    runs kept out ─▶ tables held ─▶ slot, snapshot ─▶ rows replaced ─▶ log passes over ─▶ recorded, committed
       target          source          source           target              log               target

What a crash leaves, and what the next run makes of it:

    before the log     nothing: the temporary slot is gone, the target rolled back; the pipeline is what it was
    log                a log that names a copy which the target does not know: refused, until it is copied again; of a
                       table that is gone since, any copy stands for it
    committed          all of it

Runs are kept out by a lock that goes with this process's session; a run that was alive before lost its generation.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Final
from uuid import uuid4

from psycopg import sql

from airflow_parallel_apply.pipeline.capture.overtaken import unless_overtaken
from airflow_parallel_apply.pipeline.capture.passing_over import copies_of_lost, copies_of_parts, pass_over
from airflow_parallel_apply.pipeline.check.postgres.missing_types import type_findings
from airflow_parallel_apply.pipeline.check.recopied import lost_copies
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.copy.postgres.check import copy_findings
from airflow_parallel_apply.pipeline.copy.postgres.left import require_computed, require_nothing_left
from airflow_parallel_apply.pipeline.copy.postgres.load import chunks, cut_off, look_exactly, see_snapshot, send
from airflow_parallel_apply.pipeline.copy.postgres.missing_tables import MissingTables
from airflow_parallel_apply.pipeline.copy.postgres.parts import stored_tables
from airflow_parallel_apply.pipeline.copy.postgres.progress import TableProgress
from airflow_parallel_apply.pipeline.copy.postgres.record import empty_tables
from airflow_parallel_apply.pipeline.copy.postgres.renames_ahead import require_no_renaming
from airflow_parallel_apply.pipeline.copy.protocol import RecopyProgress
from airflow_parallel_apply.pipeline.errors import START_ANEW, ConfigurationError
from airflow_parallel_apply.pipeline.ledger.open import open_pipeline
from airflow_parallel_apply.pipeline.ledger.postgres.ledger import PostgresLedger
from airflow_parallel_apply.pipeline.ledger.protocol import LeaseRequest, PipelineState
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.log.open import open_reader, reader_if_there
from airflow_parallel_apply.pipeline.log.readers import read_readers, with_forget_commands
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import command_line, refuse
from airflow_parallel_apply.pipeline.model.names_since import names_since
from airflow_parallel_apply.pipeline.model.origin import CommitOrigin
from airflow_parallel_apply.pipeline.model.position import all_equal, low_watermark
from airflow_parallel_apply.pipeline.source.postgres.catalog.own_rows import own_name
from airflow_parallel_apply.pipeline.source.postgres.session import Session as SourceSession
from airflow_parallel_apply.pipeline.source.postgres.setup.recopying import Recopying, TablesThen
from airflow_parallel_apply.pipeline.source.protocol import SourceChanged
from airflow_parallel_apply.pipeline.target.expectation import Expectation, require_applicable
from airflow_parallel_apply.pipeline.target.postgres.catalog.held import require_held
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable, hold_tables
from airflow_parallel_apply.pipeline.target.postgres.check import target_findings
from airflow_parallel_apply.pipeline.target.postgres.load.copying import open_copying
from airflow_parallel_apply.pipeline.target.postgres.merge.side_writes import SideWrites
from airflow_parallel_apply.pipeline.target.postgres.positions.origin import CommitOrigins
from airflow_parallel_apply.pipeline.target.postgres.positions.positions import read_positions
from airflow_parallel_apply.pipeline.target.postgres.positions.recopied import require_generation, write_recopied
from airflow_parallel_apply.pipeline.target.postgres.redefine.applied_tables import note_replaced
from airflow_parallel_apply.pipeline.target.postgres.replica_role import be_replica
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.protocol import Recopied

_logger = logging.getLogger(__name__)

_TRIES: Final = 3
"""Attempts at a copy whose tables change while it waits for them."""
_LOCK_TIMEOUT: Final = "30s"
_LEASE: Final = timedelta(minutes=2)


def recopy_tables(
    config: PipelineConfig,
    source: Endpoint,
    target: Endpoint,
    names: Sequence[tuple[str, str]],
    *,
    report: Callable[[RecopyProgress], None],
) -> tuple[Recopied, ...]:
    """Replace the tables' rows at the target by the source's of one moment; the next runs go on from there. A table
    that is not in the pipeline's publication comes into it; one that the target lacks is made by `create_tables`.

    Errors: `LeaseBusy` while a run owns the pipeline; `ConfigurationError`, `TargetError` for what is in the way,
    before anything is changed; those of both sides and of the log.
    """
    with ExitStack() as stack:
        name = f"parallel_apply {config.pipeline} recopy"
        looking, reading = (SourceSession(source, application_name=name) for _ in range(2))
        stack.callback(looking.close)
        stack.callback(reading.close)
        holding = open_pipeline(target, config.pipeline)
        writing = Session(target.url, pipeline=config.pipeline)
        stack.callback(holding.close)
        stack.callback(writing.close)
        log, lost = partial(reader_if_there, config.log_url), partial(lost_copies, config, holding.target)
        recopying = Recopying(looking, config, names, log, lost=lost)
        recopy = Recopy(config, reading, holding, writing, recopying, report)
        recopy.require_ready(source, target)
        recopy.keep_runs_out()
        tries = 0
        while True:
            try:
                return recopy.run()
            except SourceChanged as changed:
                tries += 1
                if tries == _TRIES:
                    raise
                _logger.warning("recopy: beginning anew: %s", changed)


class Recopy:
    """One call of `recopy_tables`. `holding`: whose session keeps runs out; `writing`: whose has the rows."""

    def __init__(
        self,
        config: PipelineConfig,
        reading: SourceSession,
        holding: PipelineSession,
        writing: Session,
        recopying: Recopying,
        report: Callable[[RecopyProgress], None],
    ) -> None:
        self._config = config
        self._reading = reading
        self._holding = holding
        self._writing = writing
        self._recopying = recopying
        self._report = report
        self._generation = 0
        self._missing = MissingTables(reading, wanted=config.create_tables)

    def require_ready(self, source: Endpoint, target: Endpoint) -> None:
        """Errors: all that is in the way, before anything is changed."""
        state = self._registered()
        place = open_reader(self._config.log_url).state().place
        with unless_overtaken("recopy", self._config.log_url, lambda: place):
            relations = self._recopying.require_copyable()
        positions, followed = self._holding.target.positions(), self._recopying.followed()
        require_nothing_left(self._config, self._reading, self._writing, relations, positions, followed)
        looked_for = Expectation(channels=max(state.channels, 1), tables=tuple(relations), followed=followed)
        with self._writing.transaction("recopy") as connection:
            found = copy_findings(connection, relations, create_tables=self._config.create_tables)
        refuse(found, place="the target", op="recopy", pipeline=self._config.pipeline)
        with self._missing.rehearsed(self._writing, relations) as made:
            there = [relation for relation in relations if relation not in made]
            found = (
                # A table that lacks a column may lack its type.
                *type_findings(self._config, source, target, there, expected=there),
                *target_findings(self._writing, looked_for),
                *self._holding.findings(),
            )
            require_applicable(found, op="recopy", pipeline=self._config.pipeline)
            require_computed(self._config, self._writing, relations, positions)
        require_no_renaming(self._config, self._holding, relations, self._recopying.gone)

    def keep_runs_out(self) -> None:
        """Keep runs out until the session ends; end what is left of a former run."""
        self._holding.migrate()
        self._holding.ledger.keep_runs_out()
        former = self._registered()
        owner = f"recopy on {socket.gethostname()} pid {os.getpid()}"
        taken = self._holding.acquire(
            LeaseRequest(log_id=former.log_id, owner=owner, lease=_LEASE, queue=former.queue, is_known=True)
        )
        self._generation = taken.generation
        positions = self._holding.target.positions()
        stop_seqno = low_watermark(positions) if positions and all_equal(positions) else None
        self._holding.ledger.release(taken.generation, clean_stop_seqno=stop_seqno)

    def run(self) -> tuple[Recopied, ...]:
        """Errors: `SourceChanged` when it is worth another try; nothing was changed."""
        recopy_id = uuid4().hex
        # Of a former try, inside its transaction.
        self._reading.close()
        origins = CommitOrigins(self._writing)
        with (
            self._recopying.then() as then,
            origins.letting_go(),
            self._writing.transaction("recopy", is_brief=False) as connection,
        ):
            origins.mark(connection, None, CommitOrigin(offset=then.lsn))
            connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(_LOCK_TIMEOUT)))
            as_replica = be_replica(connection)
            made = self._missing.make(connection, then.relations)
            tables = hold_tables(connection, then.relations)
            beside = SideWrites(
                connection, self._writing, followed=self._followed, as_replica=as_replica, only_adds=True
            )
            beside.begin(tables)
            empty_tables(connection, [table.own_rows for table in tables])
            beside.require_none(truncated=tables)
            with self._missing.filling(made):
                counts = self._load(connection, then, tables, as_replica=as_replica)
                keys = self._missing.make_rest(connection, made)
            note_replaced(connection, self._writing, then.relations)
            require_held(connection)
            as_copied = partial(Recopied, recopy_id=recopy_id, offset=then.lsn)
            done = tuple(
                as_copied(schema=table.relation.schema, table=table.relation.table, rows=count)
                for table, count in zip(tables, counts, strict=True)
            )
            # No run begins from here on, whatever became of the other session, until this transaction has ended.
            require_generation(connection, self._writing, self._generation)
            applied_seqno = low_watermark(read_positions(connection, self._writing))
            copied = tuple(zip(then.relations, done, strict=True))
            lost = (*lost_copies(self._config, self._holding.target), *then.gone)
            stood_for = copies_of_lost(
                lost,
                then.relations,
                undone=then.undone,
                names=then.names,
                parts=then.parts,
                recopy_id=recopy_id,
                offset=then.lsn,
            )
            parts = copies_of_parts(copied, then.parts)
            pass_over(
                self._config.log_url,
                copied,
                lost=stood_for,
                parts=parts,
                register=then.register,
                require=partial(self._require_namesakes, then),
                mark=partial(then.mark, recopy_id),
                require_alone=self._registered,
                after_seqno=applied_seqno,
            )
            ledger = PostgresLedger(self._writing) if self._holding.is_one_database else self._holding.ledger
            # What is gone was not copied: DDL of before, which was sent, comes upon no copy there.
            gone = (replace(copy, offset=0) for _, copy in stood_for)
            recorded = (*gone, *(copy for _, copy in parts), *done)
            ledger.note_recopied(recorded, above_seqno=applied_seqno)
            write_recopied(connection, self._writing, recorded)
        self._analyze(tables)
        self._missing.tell(made, keys)
        return done

    def _registered(self) -> PipelineState:
        """Errors: `ConfigurationError` where this is not the one target of the log's pipeline."""
        state = self._holding.ledger.state()
        if state is None:
            raise self._wrong("the target knows no such pipeline", f"Its first run copies its tables. {START_ANEW}")
        log = open_reader(self._config.log_url).identity
        if log.log_id != state.log_id:
            raise self._wrong(
                f"the target has applied log {state.log_id} so far, {self._config.log_url} is log {log.log_id}",
                "Give the pipeline's own --log-url.",
            )
        identity = self._holding.target.identity()
        key = (self._config.pipeline, identity.server, identity.database)
        others = [entry for entry in read_readers(self._config.log_url) if entry.key != key]
        if others:
            named = ", ".join(f"pipeline {entry.pipeline} at {entry.place}" for entry in others)
            raise self._wrong(
                f"others read the log, which would pass over changes that they need: {named}",
                "Drop them (parallel-apply drop), or give them logs of their own. Forget those that never read it "
                "again, since a server was upgraded or a database renamed or restored: "
                f"{with_forget_commands(self._config.log_url, others)}.",
            )
        return state

    def _load(
        self, connection: Connection, then: TablesThen, tables: Sequence[TargetTable], *, as_replica: bool
    ) -> list[int]:
        """The rows of each, as their number. Errors: those of both sides."""
        counts: list[int] = []
        with self._reading.errors("recopy"):
            if not see_snapshot(self._reading.catalog(), then.snapshot):
                raise cut_off(self._config.pipeline)
            look_exactly(self._reading.catalog())
            sizes = [0] * len(tables)
            for stored in stored_tables(self._reading.catalog(), then.relations):
                sizes[stored.relation] += stored.size_bytes
        for number, (table, origin) in enumerate(zip(tables, then.tables, strict=True)):
            progress = TableProgress(
                report=self._report,
                table=table.relation.name,
                before=sum(sizes[:number]),
                size=sizes[number],
                of=sum(sizes),
            )
            copying = open_copying(connection, self._writing, table, as_replica=as_replica, followed=self._followed)
            with self._writing.errors("recopy"):
                copying.begin()
                with own_name(self._reading, origin.oid, origin.name, op="recopy") as name, copying.taking():
                    rows = origin.named(name).rows_then(oid for oid, *_ in then.parts.get(origin.oid, ()))
                    query = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT").format(copying.columns, rows)
                    sent = send(connection, copying.command, progress.passed_on(chunks(self._reading, query)))
                copying.finish(sent.rows)
                counts.append(sent.rows)
        return counts

    def _followed(self) -> frozenset[tuple[str, str]]:
        applied_seqno = low_watermark(self._holding.target.positions())
        return names_since(open_reader(self._config.log_url).state().relations, applied_seqno)

    def _require_namesakes(self, then: TablesThen, known: Sequence[Relation]) -> None:
        """The log keeps the last copy of each name. So a table that had the name of another one that is copied, and is
        followed under a newer name, is copied, too.
        """
        require_no_renaming(self._config, self._holding, then.relations, then.gone)
        copied = {table.oid: table.name for table in then.tables}
        copied |= {one.oid: f"{one.schema}.{one.table}" for one in then.gone if one.oid is not None}
        found = [
            (relation.name, then.names[relation.oid])
            for relation in known
            if relation.oid is not None
            and relation.oid not in copied
            and relation.name in copied.values()
            and then.names.get(relation.oid, relation.name) != relation.name
        ]
        if found:
            former, now = found[0]
            names = sorted({*copied.values(), *(name for _, name in found)})
            raise self._wrong(
                f"the log knows {now} as {former}, a name that another table has had since",
                f"Copy them together: `{command_line('recopy', names)}`.",
            )

    def _analyze(self, tables: Sequence[TargetTable]) -> None:
        with self._writing.errors("analyze"):
            for table in tables:
                self._writing.connection().execute(sql.SQL("ANALYZE {}").format(table.identifier))

    def _wrong(self, what: str, hint: str) -> ConfigurationError:
        return ConfigurationError(what, op="recopy", pipeline=self._config.pipeline, hint=hint)
