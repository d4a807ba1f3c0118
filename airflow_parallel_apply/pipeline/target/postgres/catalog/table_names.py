"""Names of the target's tables: those that are there, and the statements that change them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.model.change import Renaming
from airflow_parallel_apply.postgres.arrays import named
from airflow_parallel_apply.postgres.quoting import suffixed

Name = tuple[str, str]
"""Schema and table."""
_ASIDE: Final = "parallel_apply_renaming_{}"
_IN_THE_WAY: Final = "_in_the_way"
_TRIES: Final = 100


def renaming_statements(renaming: Renaming) -> list[sql.Composed]:
    """The statements that rename tables: through names that are free, where some are exchanged. A table that changes
    its schema waits in one of its own, since its indexes move with it and may bear the names of another one's.
    """
    names = {name for pair in renaming.pairs for name in pair}
    if len(names) == 2 * len(renaming.pairs):
        return [statement for old, new in renaming.pairs for statement in renaming_one(old, new)]
    aside = [
        (old[0], _ASIDE.format(number)) if old[0] == new[0] else (_ASIDE.format(number), old[1])
        for number, (old, new) in enumerate(renaming.pairs)
    ]
    return [
        *(one for (old, _), free in zip(renaming.pairs, aside, strict=True) for one in renaming_one(old, free)),
        *(one for (_, new), free in zip(renaming.pairs, aside, strict=True) for one in renaming_one(free, new)),
        *(
            sql.SQL("DROP SCHEMA {}").format(sql.Identifier(free[0]))
            for (old, _), free in zip(renaming.pairs, aside, strict=True)
            if free[0] != old[0]
        ),
    ]


def renaming_one(old: Name, new: Name) -> list[sql.Composed]:
    """The statements that rename a table, into a schema that may have to be made."""
    statements = []
    if old[1] != new[1]:
        statements.append(sql.SQL("ALTER TABLE {} RENAME TO {}").format(sql.Identifier(*old), sql.Identifier(new[1])))
    if old[0] != new[0]:
        statements.append(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(new[0])))
        statements.append(
            sql.SQL("ALTER TABLE {} SET SCHEMA {}").format(sql.Identifier(old[0], new[1]), sql.Identifier(new[0]))
        )
    return statements


def existing(connection: psycopg.Connection[Any], names: Iterable[Name]) -> set[Name]:
    """The names that tables have. Errors: psycopg's own."""
    rows = connection.execute(
        "SELECT n.nspname::text, c.relname::text FROM pg_catalog.pg_class c "
        "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        "JOIN unnest(%(schemas)s::text[], %(tables)s::text[]) AS w (schema, name) "
        "ON w.schema = n.nspname AND w.name = c.relname WHERE c.relkind IN ('r', 'p')",
        named(names),
    ).fetchall()
    return {(str(schema), str(table)) for schema, table in rows}


def free_name(connection: psycopg.Connection[Any], name: Name) -> Name:
    """A name for a table that is in the way. Errors: psycopg's own."""
    schema, table = name
    candidates = [(schema, suffixed(table, f"{_IN_THE_WAY}{number or ''}")) for number in range(_TRIES)]
    taken = existing(connection, candidates)
    return next((one for one in candidates if one not in taken), candidates[0])


def giving_name(connection: psycopg.Connection[Any], found: Name, name: Name) -> str:
    """The text of the statements that give a table this name, whatever has it: in another schema that gets the table's
    own name, since the indexes of both may have one name, too. Errors: psycopg's own.
    """
    # Of any kind: ALTER TABLE renames a view, too.
    query = connection.execute("SELECT to_regclass(format('%%I.%%I', %s::text, %s::text)) IS NOT NULL", name)
    is_taken = query.fetchone() == (True,)
    if is_taken and found[0] != name[0]:
        statements = renaming_statements(Renaming(pairs=((found, name), (name, found)), is_certain=True))
    else:
        aside = renaming_one(name, free_name(connection, name)) if is_taken else []
        statements = [*aside, *renaming_one(found, name)]
    return "; ".join(statement.as_string(connection) for statement in statements)


def giving_back(found: Name, statements: str, *, is_within: bool) -> str:
    """The hint to give a table its name back by these statements. `is_within`: rows of the new name are in the same
    transaction, and a run that is refused in the middle of one goes back to its beginning.
    """
    after = (
        "once with ddl=apply, which renames it between rows of the same transaction."
        if is_within
        else "again: a rename that comes later is followed, or told, in its turn."
    )
    return f"It is there as {'.'.join(found)}: give it the name that these rows have ({statements}), then run {after}"
