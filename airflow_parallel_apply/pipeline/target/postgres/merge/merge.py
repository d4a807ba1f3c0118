"""Merge staged net changes into the target's tables: deletions, rows whose unique values change (see
`reinserting`), other updates, insertions. So values are freed before they are taken, in whichever part they are.

Staging lies in about the order of the target's index, so the planner is held to index nested loops, which then walk
index and heap forwards; its own choice for unknown row counts, hashes and sorts, was slower. Every statement's count
is compared with what was staged: a row that is missing, and staging that a crash emptied, are both noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from psycopg import sql

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.diagnosis import naming_table
from airflow_parallel_apply.pipeline.target.postgres.merge.cascades import find_acting_keys
from airflow_parallel_apply.pipeline.target.postgres.merge.missing_rows import MissingRows
from airflow_parallel_apply.pipeline.target.postgres.merge.multiset import Multiset
from airflow_parallel_apply.pipeline.target.postgres.merge.parts import (
    Part,
    may_store_otherwise,
    require_applied,
    same_key,
    sent_value,
    with_old_values,
)
from airflow_parallel_apply.pipeline.target.postgres.merge.reinserting import (
    Reinserting,
    has_changes_of,
    put_back,
    take_out,
)
from airflow_parallel_apply.pipeline.target.postgres.merge.side_writes import SideWrites, Written
from airflow_parallel_apply.pipeline.target.postgres.naming import SCHEMA
from airflow_parallel_apply.pipeline.target.postgres.session import Connection
from airflow_parallel_apply.pipeline.target.postgres.staging.staged_columns import operation_column
from airflow_parallel_apply.pipeline.target.postgres.staging.staging import drop_staging, require_staging
from airflow_parallel_apply.pipeline.target.postgres.statements import statement

_COUNTED: Final = {"I": "inserted", "U": "updated", "D": "deleted"}


def merge_parts(connection: Connection, parts: Sequence[Part], *, reinserting: Reinserting, beside: SideWrites) -> None:
    """Apply the parts and drop their staging. `reinserting`: for rows whose unique values change. `beside`: what others
    write meanwhile.

    Errors: `MissingRows`; `StagingLost` when staging is gone; psycopg's own. The caller rolls back.
    """
    require_staging(connection, {part.staged.staging: part.table for part in parts})
    if not reinserting.as_replica:
        _require_what_happened(connection, parts)
    beside.begin([part.table for part in parts])
    multisets = _multisets(parts, as_replica=reinserting.as_replica)
    deleted = [multiset.delete(connection) for multiset in multisets]
    counted = {multiset.table.relation.relation_id for multiset in multisets}
    keyed = [part for part in parts if part.table.relation.relation_id not in counted]
    connection.execute(statement("merge", "settings"))
    as_replica = reinserting.as_replica
    guarded = [one for one in keyed if one.table.relation.key_indexes and one.table.is_guarded(as_replica=as_replica)]
    read_again = {
        part.table.oid
        for part in guarded
        if not beside.counts_updates_of(part.table) or may_store_otherwise(connection, part, as_replica=as_replica)
    }
    keyed = [with_old_values(connection, part) if part.table.oid in read_again else part for part in keyed]
    try:
        _run_all(connection, keyed, reinserting, beside)
    except MissingRows:
        beside.explain_missing()
        raise
    beside.let_deferred_act()
    for part in keyed:
        if part.table.oid in read_again:
            require_applied(connection, part, as_replica=as_replica)
    if multisets:
        connection.execute(statement("merge", "default_settings"))
    for multiset, count in zip(multisets, deleted, strict=True):
        beside.count(multiset.table, multiset.insert(connection, deleted=count))
    try:
        beside.require_none()
    except TargetError:
        # Rather than a table, tell a row.
        for part in guarded:
            require_applied(connection, part, as_replica=as_replica)
        raise
    if parts:
        connection.execute(drop_staging([part.staged.staging for part in parts]))


def _run_all(connection: Connection, parts: Sequence[Part], reinserting: Reinserting, beside: SideWrites) -> None:
    for part in reversed(parts):
        _run(connection, part, "D", part.staged.deletes, beside)
    taken_out = []
    for part in parts:
        taken_out.append(take_out(connection, part, reinserting))
        beside.count(part.table, Written(deleted=taken_out[-1]))
    for part, count in zip(parts, taken_out, strict=True):
        _run(connection, part, "U", part.staged.updates, beside, done=count)
    for part in parts:
        _run(connection, part, "I", part.staged.inserts, beside)
    for part, count in zip(parts, taken_out, strict=True):
        brought = put_back(connection, part) if count else 0
        beside.count(part.table, Written(inserted=brought))
        if brought != count:
            raise MissingRows(part, "U", part.staged.updates, part.staged.updates - count)


def _multisets(parts: Sequence[Part], *, as_replica: bool) -> tuple[Multiset, ...]:
    """The tables without a key of which rows are to be deleted, or may be changed by others; with insertions alone
    there is nothing to count.
    """
    of_table: dict[int, list[Part]] = {}
    for part in parts:
        if not part.table.relation.key_indexes:
            of_table.setdefault(part.table.relation.relation_id, []).append(part)
    return tuple(
        Multiset(table=found[0].table, staged=tuple(part.staged for part in found), as_replica=as_replica)
        for found in of_table.values()
        if any(part.staged.deletes or part.table.is_guarded(as_replica=as_replica) for part in found)
    )


def _require_what_happened(connection: Connection, parts: Sequence[Part]) -> None:
    """Refuse a merge whose deletions and updates foreign keys would take for what they are not. In net changes a row
    with another key is one that went and one that came, or one that took another row's place; a foreign key over other
    columns, which the source's row kept, would delete or change children for it. One over the key is safe: the source's
    own has acted then, too, and the log has what it did. Not so where equal keys may have several texts: such a row may
    have got another one of them, which leaves its children alone. A replay, change by change, does what the source did.
    """
    for key in find_acting_keys(connection):
        for part in parts:
            sent = {*part.table.relation.key_names}
            is_over_key = bool(sent) and sent.issubset(key.referenced) and part.table.relation.canonical
            if part.table.oid not in key.parents or is_over_key:
                continue
            if part.staged.deletes or has_changes_of(connection, part, key.referenced):
                raise TargetError(
                    f"a foreign key over {', '.join(key.referenced)} would act on net changes as if a row had gone",
                    table=part.table.relation.name,
                    hint="Let the role set session_replication_role.",
                )


def _run(
    connection: Connection, part: Part, operation: str, expected: int, beside: SideWrites, *, done: int = 0
) -> None:
    """`done`: how many of the expected rows another way has dealt with."""
    if expected == done:
        return
    build = {"D": _delete, "U": _update, "I": _insert}[operation]
    with naming_table(part.table.relation.name):
        found = connection.execute(build(part)).rowcount
    beside.count(part.table, Written(**{_COUNTED[operation]: found}))
    if found + done != expected:
        raise MissingRows(part, operation, expected, found + done)


def _delete(part: Part) -> sql.Composed:
    return sql.SQL("DELETE FROM {target} AS t USING {staging} AS s WHERE s.{operation} = 'D' AND {same}").format(
        target=part.table.own_rows,
        staging=sql.Identifier(SCHEMA, part.staged.staging),
        operation=operation_column(part.table.relation),
        same=same_key(part.table),
    )


def _update(part: Part) -> sql.Composed:
    return sql.SQL(
        "UPDATE {target} AS t SET {assignments} FROM {staging} AS s WHERE s.{operation} = 'U' AND {same}"
    ).format(
        target=part.table.own_rows,
        assignments=sql.SQL(", ").join(_assignments(part)),
        staging=sql.Identifier(SCHEMA, part.staged.staging),
        operation=operation_column(part.table.relation),
        same=same_key(part.table),
    )


def _assignments(part: Part) -> list[sql.Composed]:
    """Every column that an update may set; a key column only where an equal key may have another text."""
    made = []
    for index, column in enumerate(part.table.relation.columns):
        found = part.table.columns[column.name]
        if found.generated or found.identity_always or (column.key and found.one_image):
            continue
        made.append(sql.SQL("{} = ").format(sql.Identifier(column.name)) + sent_value(part, index))
    if not made:
        # A table of key columns only: the update must still find its row.
        key = part.table.relation.key_names[0]
        made.append(sql.SQL("{name} = t.{name}").format(name=sql.Identifier(key)))
    return made


def _insert(part: Part) -> sql.Composed:
    names = sql.SQL(", ").join(
        sql.Identifier(column.name)
        for column in part.table.relation.columns
        if not part.table.columns[column.name].generated
    )
    return sql.SQL(
        "INSERT INTO {target} ({names}) OVERRIDING SYSTEM VALUE SELECT {names} FROM {staging} WHERE {operation} = 'I'"
    ).format(
        target=part.table.identifier,
        names=names,
        staging=sql.Identifier(SCHEMA, part.staged.staging),
        operation=operation_column(part.table.relation),
    )
