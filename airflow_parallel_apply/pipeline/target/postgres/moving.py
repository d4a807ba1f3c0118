"""Updates that give a row another unique value, done as a deletion and an insertion: freed before they are taken.

One UPDATE of many rows meets duplicates that the final rows do not have: two that swap their values, one that takes
what another only gives up later in the statement. With such rows taken out first, the table holds at every step some of
the final rows and none that is in their way, so what the source accepted, the merge never refuses. Exclusion
constraints are served by the same order. A table without secondary unique indexes costs nothing.

Not where somebody would see a deletion that never was, and cascade it: foreign keys and triggers of the table, without
the right to apply as a replica. Of triggers that fire even for a replica that is put up with at merge points, where no
other way is left. What conflicts elsewhere is replayed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from psycopg import sql

from airflow_parallel_apply.pipeline.target.postgres.parts import Part, same_key, sent_value
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.staging import OPERATION_COLUMN, UNSENT_COLUMN


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving:
    """Which rows a merge may move. `as_replica`: what `be_replica` said. `alone`: no other way is left."""

    as_replica: bool
    alone: bool = False

    def takes(self, part: Part) -> bool:
        """Whether rows of the part's table may be moved."""
        if not self.as_replica:
            return not part.table.fires
        return self.alone or not part.table.fires_as_replica


def move_out(connection: Connection, session: Session, part: Part) -> int:
    """Take the rows whose unique values change out of the target, in their final form, into a table of their own.
    Returns how many. Errors: psycopg's own.
    """
    if not part.staged.updates or not part.table.contended:
        return 0
    found = connection.execute(_find(session.schema, part)).fetchone()
    if found is None:
        return 0
    connection.execute(_create(session.schema, part))
    return connection.execute(_take_out(session.schema, part)).rowcount


def bring_in(connection: Connection, session: Session, part: Part) -> int:
    """Insert what `move_out` took, and drop the table that kept it. Errors: psycopg's own."""
    kept = sql.Identifier(session.schema, _kept_in(part))
    inserted = connection.execute(
        sql.SQL("INSERT INTO {target} ({names}) OVERRIDING SYSTEM VALUE SELECT {names} FROM {kept}").format(
            target=part.table.identifier, names=_names(part), kept=kept
        )
    )
    connection.execute(sql.SQL("DROP TABLE {}").format(kept))
    return inserted.rowcount


def _find(schema: str, part: Part) -> sql.Composed:
    return sql.SQL("SELECT FROM {target} AS t, {staging} AS s WHERE {changed} LIMIT 1").format(
        target=part.table.own_rows, staging=sql.Identifier(schema, part.staged.staging), changed=_changed(part)
    )


def _create(schema: str, part: Part) -> sql.Composed:
    return sql.SQL(
        "CREATE UNLOGGED TABLE {kept} WITH (autovacuum_enabled = off) AS SELECT {names} FROM {target} WITH NO DATA"
    ).format(kept=sql.Identifier(schema, _kept_in(part)), names=_names(part), target=part.table.identifier)


def _take_out(schema: str, part: Part) -> sql.Composed:
    final = sql.SQL(", ").join(_final_values(part))
    return sql.SQL(
        "WITH gone AS (DELETE FROM {target} AS t USING {staging} AS s WHERE {changed} RETURNING {final})"
        " INSERT INTO {kept} SELECT * FROM gone"
    ).format(
        target=part.table.own_rows,
        staging=sql.Identifier(schema, part.staged.staging),
        changed=_changed(part),
        final=final,
        kept=sql.Identifier(schema, _kept_in(part)),
    )


def _changed(part: Part) -> sql.Composed:
    """An update that changes a contended column. Compared as text where the type need not have an equality."""
    indexes = {column.name: index for index, column in enumerate(part.table.relation.columns)}
    tests = []
    for column in part.table.contended:
        name = sql.Identifier(column)
        form = "t.{name} IS DISTINCT FROM s.{name}"
        if not part.table.columns[column].one_image:
            form = "t.{name}::text IS DISTINCT FROM s.{name}::text"
        test = sql.SQL(form).format(name=name)
        if part.staged.has_unsent:
            test = sql.SQL("({test} AND substr(s.{unsent}, {place}, 1) IS DISTINCT FROM '1')").format(
                test=test, unsent=UNSENT_COLUMN, place=indexes[column] + 1
            )
        tests.append(test)
    return sql.SQL("s.{operation} = 'U' AND {same} AND ({tests})").format(
        operation=OPERATION_COLUMN, same=same_key(part.table), tests=sql.SQL(" OR ").join(tests)
    )


def _final_values(part: Part) -> Iterator[sql.Composed]:
    """Of the columns that `_names` names: as sent, or as the old row has them."""
    indexes = {column.name: index for index, column in enumerate(part.table.relation.columns)}
    for name, column in part.table.columns.items():
        if column.generated:
            continue
        if name in indexes:
            yield sent_value(part, indexes[name])
        else:
            yield sql.SQL("t.{}").format(sql.Identifier(name))


def _names(part: Part) -> sql.Composed:
    return sql.SQL(", ").join(
        sql.Identifier(name) for name, column in part.table.columns.items() if not column.generated
    )


def _kept_in(part: Part) -> str:
    """As long as the staging table's own name, and told from it by its first letter."""
    return "m" + part.staged.staging[1:]
