"""The steps of a unit, inside the one transaction that moves its positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, assert_never

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from airflow_parallel_apply.pipeline.errors import OWN_PIPELINE, FatalError, ParallelApplyError, PlanError, TargetError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import Merging, StagedUnit, Unit
from airflow_parallel_apply.pipeline.model.sent_ddl import shown_ddl
from airflow_parallel_apply.pipeline.target.older_rows import under_skipped
from airflow_parallel_apply.pipeline.target.postgres.catalog.held import forget_held, require_held
from airflow_parallel_apply.pipeline.target.postgres.catalog.unfit import RefusedStatement
from airflow_parallel_apply.pipeline.target.postgres.catalog.untold import recopying
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.diagnosis import translate
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.required_columns import ADDS_CONSTRAINTS
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.wording import wording
from airflow_parallel_apply.pipeline.target.postgres.merge.merge import merge_parts
from airflow_parallel_apply.pipeline.target.postgres.merge.parts import describe_parts
from airflow_parallel_apply.pipeline.target.postgres.merge.reinserting import Reinserting
from airflow_parallel_apply.pipeline.target.postgres.merge.side_writes import SideWrites
from airflow_parallel_apply.pipeline.target.postgres.redefine.applied_tables import (
    forget_dropped,
    hold_applied,
    note_tables,
)
from airflow_parallel_apply.pipeline.target.postgres.redefine.namesakes import refusing_namesakes
from airflow_parallel_apply.pipeline.target.postgres.redefine.newer_copies import leaving_newer_copies
from airflow_parallel_apply.pipeline.target.postgres.redefine.nothing_left import unless_done
from airflow_parallel_apply.pipeline.target.postgres.redefine.own_types import require_types
from airflow_parallel_apply.pipeline.target.postgres.redefine.redefine import follow, is_followed
from airflow_parallel_apply.pipeline.target.postgres.redefine.sent_paths import under_sent_path
from airflow_parallel_apply.pipeline.target.postgres.redefine.sent_rows import refusing_rows
from airflow_parallel_apply.pipeline.target.postgres.redefine.told_renames import noting_renames
from airflow_parallel_apply.pipeline.target.postgres.redefine.told_types import noting_types
from airflow_parallel_apply.pipeline.target.postgres.redefine.uncast import takes_older
from airflow_parallel_apply.pipeline.target.postgres.removing import remove_rows
from airflow_parallel_apply.pipeline.target.postgres.replay.replay import Replayer
from airflow_parallel_apply.pipeline.target.postgres.replica_role import be_replica, check_what_waits
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.pipeline.target.redefinition import compare_definitions
from airflow_parallel_apply.pipeline.target.relations import Relations
from airflow_parallel_apply.pipeline.target.skipping import bound
from airflow_parallel_apply.pipeline.target.steps import Merge, Redefine, Remove, Replay, Statement, Step, Truncate
from airflow_parallel_apply.postgres import sqlstate
from airflow_parallel_apply.postgres.quoting import quoted
from airflow_parallel_apply.postgres.settings import EXACT, settle

_LOOKS_AT_PARTITIONS: Final = ("check_default_partition_contents", ADDS_CONSTRAINTS)
"""The server's functions that look whether rows that are there may stay where they are, beside a new partition."""
_LOOKS_AT_ROWS: Final = (ADDS_CONSTRAINTS, "comparetup_index_btree", "comparetup_index_btree_tiebreak")
"""The same of rows that are there already, under a new constraint or unique index."""
_NOT_IN_TRANSACTION: Final = (sqlstate.ACTIVE_TRANSACTION, sqlstate.TRANSACTION_TERMINATION)
"""VACUUM, CREATE INDEX CONCURRENTLY and the like; COMMIT."""
_NOT_IN_BLOCK: Final = "exec_stmt_dynexecute"
"""The server's function that refuses what a block does not do: COMMIT of another form, SELECT INTO."""
_RENAMES_LABEL: Final = "RenameEnumLabel"
"""The server's function that gives a label of an enum another name."""
_CONSTRAINTS: Final = (sqlstate.NOT_NULL_VIOLATION, sqlstate.CHECK_VIOLATION, sqlstate.UNIQUE_VIOLATION)

_LACKS_TABLE: Final = (
    "Make the table at the target: `parallel-apply check` prints a CREATE TABLE for each that is missing. Then run "
    "again."
)
_LACKS_COLUMN: Final = (
    "Add the column to the target's table, as the source has it. Or, if the source renamed another column to this "
    "name, rename it at the target instead. (The target follows either change by itself only with the table's next "
    "row.) Then run again."
)
_LACKING: Final = {sqlstate.UNDEFINED_TABLE: _LACKS_TABLE, sqlstate.UNDEFINED_COLUMN: _LACKS_COLUMN}
_UNCAST: Final = (psycopg.DataError, psycopg.errors.DatatypeMismatch, psycopg.errors.CannotCoerce)
"""A value, or a type, that the server does not cast."""
_READY: Final = "Make the target ready for the statement, then run again."


class Steps:
    """Runs the steps of one unit in order, inside the caller's transaction. One replay goes through all of them: what
    it learns about tables serves until a statement or a new definition may have changed them.
    """

    def __init__(self, connection: Connection, session: Session, relations: Relations, unit: Unit) -> None:
        self._connection = connection
        self._session = session
        self._relations = relations
        self._unit = unit
        self._has_merge_settings = False

    def run(self, steps: Sequence[Step]) -> None:
        """Errors: `PlanError` for a statement that cannot run in a transaction, or that would change a copy of a later
        moment; as `merge`, `replay`.
        """
        steps = [step for step in steps if not isinstance(step, Merge) or step.staged.tables]
        if not steps:
            return
        redefined = [step for step in steps if isinstance(step, Redefine)]
        rows = under_skipped(
            steps,
            self._relations,
            is_seen=partial(self._is_seen, redefined),
            takes_older=partial(takes_older, self._connection),
            way_on=recopying,
        )
        reinserting = Reinserting(as_replica=be_replica(self._connection), alone=isinstance(self._unit.kind, Merging))
        beside = SideWrites(
            self._connection,
            self._session,
            followed=partial(self._relations.names, self._unit.after_seqno),
            as_replica=reinserting.as_replica,
            colocation=self._unit.routing.colocation if self._unit.routing else (),
            is_channel=self._unit.channel is not None and self._unit.channels > 1,
        )
        replayer = Replayer(
            self._connection, self._session, relations=self._relations, reinserting=reinserting, beside=beside
        )
        for place, step in enumerate(rows, start=1):
            if isinstance(step, Truncate | Statement | Redefine) and not reinserting.as_replica:
                check_what_waits(self._connection)
            if isinstance(step, Statement | Redefine):
                require_held(self._connection)
                forget_held(self._connection)
            if not isinstance(step, Merge):
                self._leave_merge_settings()
            match step:
                case Merge(staged):
                    self._merge(staged, reinserting, beside)
                case Truncate():
                    relations = [self._relations(number) for number in step.relation_ids]
                    _truncate(self._connection, self._session, step, relations, beside)
                case Remove():
                    relation = self._relations(step.rows.relation_id)
                    as_replica = reinserting.as_replica
                    remove_rows(self._connection, self._session, step, relation, beside, as_replica=as_replica)
                case Statement():
                    replayer.forget_tables()
                    names, definitions = self._relations.all_names(), self._relations.definitions()
                    own = require_types(self._connection, self._session, step)
                    with (
                        noting_renames(self._connection, self._session, names),
                        noting_types(self._connection, self._session, step.text, names),
                        refusing_rows(self._connection, self._session, step, names),
                        leaving_newer_copies(self._connection, self._session, step, definitions),
                        refusing_namesakes(self._connection, self._session, step),
                    ):
                        run = partial(_run_statement, self._connection, step, own)
                        unless_done(self._connection, self._session, step, definitions, run=run)
                    forget_dropped(self._connection, self._session)
                    if reinserting.as_replica:
                        # Unless the text has changed that.
                        be_replica(self._connection)
                case Redefine():
                    replayer.forget_tables()
                    old, new = self._relations(step.older_id), self._relations(step.newer_id)
                    self._session.former_columns |= _renamed_columns(old, new)
                    try:
                        self._redefine(step)
                    except PlanError as error:
                        others = [*self._refused_beside(step, rows[place:])]
                        bound(error, step.shown_end, others, sent=_sent_beside(step, rows))
                        raise
                case Replay(rows_of):
                    beside.is_channel |= step.is_apart
                    replayer.run(rows_of())
                case _:
                    assert_never(step)
        beside.require_nothing_left()
        require_held(self._connection)

    def _merge(self, staged: StagedUnit, reinserting: Reinserting, beside: SideWrites) -> None:
        relations = [self._relations(table.relation_id) for table in staged.tables]
        parts = describe_parts(self._connection, self._session, staged.tables, relations)
        merge_parts(self._connection, parts, reinserting=reinserting, beside=beside)
        self._has_merge_settings = True

    def _is_seen(self, redefined: Sequence[Redefine], step: Redefine) -> bool:
        """True if the table shows the newer definition. One that leads back to a former one of the unit is shown by a
        table that was never changed.
        """
        old, new = self._relations(step.older_id), self._relations(step.newer_id)
        former = (self._relations(one.older_id) for one in redefined if one.newer_id <= step.newer_id)
        is_back = any(
            one.oid == new.oid and _looks(one) == _looks(new) and not _is_exchange(one, new) for one in former
        )
        return not is_back and is_followed(self._connection, self._session, old, new)

    def _redefine(self, step: Redefine) -> None:
        follow(
            self._connection,
            self._session,
            self._relations(step.older_id),
            self._relations(step.newer_id),
            ddl=step.ddl,
            is_first=step.is_first,
            is_emptied=step.is_emptied,
            end_offset=step.end_offset,
        )

    def _refused_beside(self, step: Redefine, later: Sequence[Step]) -> Iterator[PlanError]:
        """Yield the refusals of the later definitions of a step's transaction."""
        for other in later:
            if isinstance(other, Redefine) and other.end_offset == step.end_offset:
                try:
                    with self._connection.transaction(force_rollback=True):
                        self._redefine(other)
                except PlanError as error:
                    yield error
                except psycopg.Error:
                    # It needs what is refused.
                    continue

    def _leave_merge_settings(self) -> None:
        """They would slow other steps down."""
        if self._has_merge_settings:
            self._connection.execute(statement("merge", "default_settings"))
            self._has_merge_settings = False


def _sent_beside(step: Redefine, steps: Sequence[Step]) -> list[Statement]:
    """The DDL that a definition's transaction sent."""
    return [one for one in steps if isinstance(one, Statement) and one.end_offset == step.end_offset]


def _looks(relation: Relation) -> tuple[str, set[tuple[str, str]]]:
    """All that a table shows of a definition."""
    return relation.name, {(column.name, column.type_name) for column in relation.columns}


def _is_exchange(older: Relation, newer: Relation) -> bool:
    """True if the same columns have each other's names, which their numbers show."""
    before, after = ({column.number: column.name for column in one.columns} for one in (older, newer))
    return None not in before and before.keys() == after.keys() and before != after


def _renamed_columns(old: Relation, new: Relation) -> dict[tuple[str, str, str], str]:
    changes = compare_definitions(old, new).changes
    pairs = [(one.old.name, one.new.name) for one in changes if one.old is not None and one.new is not None]
    return {(new.schema, new.table, after): before for before, after in pairs if before != after}


def _truncate(
    connection: Connection, session: Session, step: Truncate, relations: Sequence[Relation], beside: SideWrites
) -> None:
    """The source names every table that its CASCADE reached; the target's own references are not cascaded to."""
    tables = hold_applied(connection, relations, pipeline=session.pipeline, are_emptied=True)
    oids = [table.oid for table in tables]
    cursor = connection.cursor(row_factory=dict_row)
    for key in cursor.execute(statement("tables", "references"), {"oids": oids}):
        raise TargetError(
            f"a TRUNCATE cannot be followed: at the target {key['child_name']} refers to {key['parent_name']}, "
            "which the source truncates alone",
            table=next(table.relation.name for table in tables if table.oid == key["root"]),
            hint=f"Run ALTER TABLE {key['child_name']} DROP CONSTRAINT {quoted(key['name'])}; the source has no "
            "such reference, or one from a table that is not followed. Then run again.",
        )
    beside.begin(tables)
    truncate = sql.SQL("TRUNCATE {}").format(sql.SQL(", ").join(table.own_rows for table in tables))
    try:
        with connection.transaction():
            connection.execute(truncate + sql.SQL(" RESTART IDENTITY" if step.restart_identity else ""))
    except psycopg.errors.InsufficientPrivilege:
        if not step.restart_identity:
            raise
        # Sequences may have another owner, and nobody follows them.
        connection.execute(truncate)
    beside.require_none(truncated=tables)
    # No column has another one's values now, whatever it was.
    note_tables(connection, session, relations, is_certain=True)


def _run_statement(connection: Connection, step: Statement, own: PlanError | None) -> None:
    """Run the text inside a DO block, which refuses to end the transaction whatever the text says. Settings made for
    it, such as the time zone of the session that sent it, end with it. `own`: see `require_types`.
    """
    block = sql.SQL("BEGIN EXECUTE {}; END").format(sql.Literal(step.text)).as_string(connection)
    try:
        with under_sent_path(connection, step):
            connection.execute(sql.SQL("DO {}").format(sql.Literal(block)))
    except psycopg.Error as error:
        if own is not None and isinstance(error, _UNCAST):
            raise own from error
        raise _refused(error, step) from error
    settle(lambda query: connection.execute(query).fetchall(), EXACT)


def _refused(error: psycopg.Error, step: Statement) -> ParallelApplyError:
    shown = shown_ddl(step.text)
    if error.sqlstate in _NOT_IN_TRANSACTION or error.diag.source_function == _NOT_IN_BLOCK:
        return PlanError(
            f"the target cannot run this in a transaction: {shown}: {wording(error)[0]}",
            hint=f"Run it at the target by hand, if it needs that; then {step.skipping}. Send no such statements.",
        )
    if error.sqlstate in (sqlstate.FEATURE_NOT_SUPPORTED, sqlstate.DEPENDENT_OBJECTS):
        return TargetError(
            f"the target refuses the DDL: {shown}: {wording(error)[0]}",
            hint="Where other objects of the target use what it changes, drop them, and make them again behind it: run "
            "again in between. Where the target's table cannot have this, as one that is partitioned otherwise, "
            f"{step.skipping}.",
        )
    if error.sqlstate == sqlstate.DUPLICATE_OBJECT and error.diag.source_function == _RENAMES_LABEL:
        return TargetError(
            f"the target refuses the DDL: {shown}: {wording(error)[0]}",
            hint="The type has both labels at the target, and older rows still have the former one. Copy each table of "
            f"that type anew: `parallel-apply recopy {OWN_PIPELINE} --table schema.table`. Then {step.skipping}.",
        )
    is_placed = error.diag.constraint_name is None and error.diag.source_function in _LOOKS_AT_PARTITIONS
    if error.sqlstate == sqlstate.CHECK_VIOLATION and is_placed:
        return TargetError(
            f"the target refuses the DDL: {shown}: {wording(error)[0]}",
            hint="Rows of the target lie in another partition, which a partition there is for: the target need not be "
            f"partitioned as the source is. So {step.skipping}.",
        )
    if error.sqlstate in _CONSTRAINTS and error.diag.source_function in _LOOKS_AT_ROWS:
        return TargetError(
            f"the target refuses the DDL: {shown}: {wording(error)[0]}",
            hint=f"Where the table was copied anew, its rows are of a later moment. So {step.skipping}. Else somebody "
            "else changed them: `parallel-apply compare` shows which; fix them, then run again.",
        )
    found = translate(error, op="ddl")
    if isinstance(found, FatalError):
        hint = _LACKING.get(error.sqlstate or "", found.hint)
        return RefusedStatement(
            f"the target refuses the DDL: {shown}: {wording(error)[0]}",
            hint=f"{hint or _READY} Where it has what the statement makes already, or not what it removes, as behind a "
            f"table that was copied anew, {step.skipping}.",
            names=step.names,
        )
    return found
