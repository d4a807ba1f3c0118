"""Alterations of one column: those that a run makes, and what a person has to do about the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from psycopg import sql

from airflow_parallel_apply.pipeline.errors import FatalError, PlanError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.postgres.catalog.inherited import heirs
from airflow_parallel_apply.pipeline.target.postgres.catalog.table_names import existing
from airflow_parallel_apply.pipeline.target.postgres.catalog.unfit import MissingTable
from airflow_parallel_apply.pipeline.target.postgres.catalog.untold import recopying
from airflow_parallel_apply.pipeline.target.postgres.redefine import fills
from airflow_parallel_apply.pipeline.target.postgres.redefine.found_columns import FoundColumn
from airflow_parallel_apply.pipeline.target.postgres.redefine.lacking_types import lacking_hint, lacks_type
from airflow_parallel_apply.pipeline.target.postgres.session import Connection
from airflow_parallel_apply.pipeline.target.skipping import SKIPPING

_REFERENCES: Final = """
SELECT format('ALTER TABLE %%I.%%I DROP CONSTRAINT %%I', n.nspname, c.relname, k.conname)
FROM pg_catalog.pg_constraint k
JOIN pg_catalog.pg_class c ON c.oid = k.conrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a
    ON a.attrelid = to_regclass(format('%%I.%%I', %(schema)s::text, %(table)s::text)) AND a.attname = %(column)s
CROSS JOIN LATERAL unnest(k.conkey, k.confkey) AS pair (own, other)
JOIN pg_catalog.pg_attribute o ON o.attnum = CASE WHEN k.conrelid = a.attrelid AND pair.own = a.attnum THEN pair.other
        ELSE pair.own END
    AND o.attrelid = CASE WHEN k.conrelid = a.attrelid AND pair.own = a.attnum THEN k.confrelid ELSE k.conrelid END
CROSS JOIN LATERAL (
    SELECT CASE x.oid WHEN 'varchar'::regtype THEN 'text'::regtype::oid ELSE x.oid END AS oid
    FROM (SELECT to_regtype(%(type_name)s)::oid AS oid) x
) wanted
CROSS JOIN LATERAL (
    SELECT CASE o.atttypid WHEN 'varchar'::regtype THEN 'text'::regtype::oid ELSE o.atttypid END AS oid
) beside
WHERE k.contype = 'f' AND k.conparentid = 0
    AND ((k.conrelid = a.attrelid AND pair.own = a.attnum) OR (k.confrelid = a.attrelid AND pair.other = a.attnum))
    AND CASE WHEN %(type_name)s::text IS NULL THEN k.conrelid <> a.attrelid
        ELSE wanted.oid IS DISTINCT FROM beside.oid AND NOT EXISTS (
            SELECT FROM pg_catalog.pg_amop p
            JOIN pg_catalog.pg_am m ON m.oid = p.amopmethod AND m.amname = 'btree'
            WHERE p.amopstrategy = 3 AND p.amoplefttype = wanted.oid AND p.amoprighttype = beside.oid
        ) END
ORDER BY 1
"""
"""The foreign keys that keep a column from being dropped, or from having a type that nothing compares with the type of
the column at their other end.
"""
UNTOLD: Final = ", and the log does not tell what older rows hold in it (a value for each row, or one rewritten since)"
_AS_THERE: Final = ", as by the statement that the source ran, in a session with the settings of that one (timezone)"


@dataclass(frozen=True, slots=True)
class Alteration:
    """The alteration of one column, in words for people and in SQL for the server."""

    column: str
    what: str
    statements: tuple[sql.Composed, ...]
    is_certain: bool = True
    type_name: str | None = None
    """The type that the statements name."""
    former_type: str | None = None
    """The type that the column has, where that is what changes."""
    owner: tuple[str, str] | None = None
    """Schema and name of the table that the statements alter instead, since the column is inherited from it."""
    strangers: tuple[str, ...] = ()
    """Children whose own column has the new name, and is not known as one of the source's."""
    unlike: tuple[sql.Composed, ...] = ()
    """The statements that give the source's types to what these read; before these, where the server refuses them."""
    first: str = ""
    """The beginning of the hint, where a person has to do something before the statements."""


def altering(relation: Relation, found: FoundColumn | None = None) -> sql.Composed:
    """The beginning of the statement that alters an existing column."""
    owner = found.owner if found is not None else None
    return sql.SQL("ALTER TABLE {} ").format(sql.Identifier(*(owner or (relation.schema, relation.table))))


def freeing(connection: Connection, relation: Relation) -> tuple[sql.Composed, ...]:
    """The statement that goes before those that alter the columns of a table OF a type: the server alters none of them
    while it is one. Errors: psycopg's own.
    """
    found = connection.execute(
        "SELECT reloftype <> 0 FROM pg_catalog.pg_class WHERE oid = to_regclass(format('%%I.%%I', %s::text, %s::text))",
        [relation.schema, relation.table],
    ).fetchone()
    table = sql.Identifier(relation.schema, relation.table)
    return (sql.SQL("ALTER TABLE {} NOT OF").format(table),) if found == (True,) else ()


def freed(connection: Connection, relation: Relation, alteration: Alteration) -> Alteration:
    """The alteration, behind what goes before it. Errors: psycopg's own."""
    if not alteration.statements:
        return alteration
    return replace(alteration, statements=(*freeing(connection, relation), *alteration.statements))


def left(connection: Connection, relation: Relation, alteration: Alteration, *, users: str = "") -> FatalError:
    """`users`: what at the target is in the way, as the server names it."""
    if not existing(connection, [(relation.schema, relation.table)]):
        return MissingTable(relation, connection.info.server_version)
    text = "; ".join(statement.as_string(connection) for statement in alteration.statements)
    altered = alteration.owner or (relation.schema, relation.table)
    if alteration.is_certain:
        hint = (
            f"Change the target so that its rows are the source's ({text}), then run again: everything before is "
            "applied. With ddl=apply the pipeline does what the log tells for certain. Where names and types do not "
            f"show that you did it, it stops here again: {SKIPPING}, which takes it as done."
        )
    else:
        begin = f"Run {text} at the target; then " if text else ""
        # The statement changes the values of theirs as well, which then look as if they had been followed.
        names = [".".join(one) for one in (altered, *heirs(connection, *altered))] if text else []
        hint = f"{begin}{recopying(relation, *names)}"
        if not fills.brings_rows(connection, relation):
            how = "" if UNTOLD in alteration.what else _AS_THERE
            hint += f" Or change the target yourself so that its rows are the source's{how}, and {SKIPPING}, which "
            hint += "takes it as done."
    hint = f"{alteration.first}{hint}"
    is_retyped = alteration.former_type is not None
    keys = _references(connection, relation, alteration) if users or is_retyped else []
    if keys:
        hint = f"Run {'; '.join(keys)} at the target first, and make again behind it what the source still has. {hint}"
    if users:
        hint = f"Other objects of the target use the column ({users}): drop them, and make them again behind it. {hint}"
    if alteration.strangers:
        hint = f"In {', '.join(alteration.strangers)} a column of the target's own has the new name. {hint}"
    if alteration.owner is not None:
        hint = f"The target's table has the column from {'.'.join(alteration.owner)}. {hint}"
    if alteration.type_name is not None and lacks_type(connection, alteration.type_name):
        lacking = lacking_hint(connection, alteration.type_name, alteration.former_type)
        hint = f"{lacking} If the source has it no more: {recopying(relation)} {hint}"
    return PlanError(
        f"at the source the column {alteration.column} of {relation.name} {alteration.what}, which the target has not "
        "followed",
        table=relation.name,
        column=alteration.column,
        hint=hint,
    )


def _references(connection: Connection, relation: Relation, alteration: Alteration) -> list[str]:
    """The statements that drop those which are in the way."""
    schema, table = alteration.owner or (relation.schema, relation.table)
    type_name = None if alteration.former_type is None else alteration.type_name
    wanted = {"schema": schema, "table": table, "column": alteration.column, "type_name": type_name}
    return [text for (text,) in connection.execute(_REFERENCES, wanted).fetchall()]
