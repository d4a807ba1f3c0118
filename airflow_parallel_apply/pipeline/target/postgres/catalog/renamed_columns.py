"""Columns of the target that have other names than the rows that come: the statements that give them these."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.postgres.catalog.inherited import owner_of_column
from airflow_parallel_apply.pipeline.target.postgres.catalog.table_names import Name
from airflow_parallel_apply.pipeline.target.postgres.catalog.untold import recopying
from airflow_parallel_apply.pipeline.target.postgres.naming import SCHEMA
from airflow_parallel_apply.postgres.quoting import quoted, suffixed

_ASIDE: Final = "parallel_apply_renaming_{}"
_IN_THE_WAY: Final = "_in_the_way"


class RenamedColumns(TargetError):
    """Columns that have held a definition's values so far have other names at the target, whatever has their former
    names now. `renamed`: the names there, and those of the definition. `statements`: what gives these back. `vouching`:
    see there; empty where no other column has such a name. See `name_other_name`, too.
    """

    def __init__(self, relation: Relation, renamed: Mapping[str, str], statements: str, vouching: str) -> None:
        names = ", ".join(f"{own} is called {found}" for found, own in renamed.items())
        super().__init__(
            f"columns that had these values so far have other names at the target: {names}",
            table=relation.name,
            column=next(iter(renamed.values())),
        )
        self.relation = relation
        self._statements = statements
        self._vouching = vouching
        self.say(is_within=False)

    def say(self, *, is_within: bool) -> None:
        """Complete the hint. `is_within`: the transaction of the rows changes the definition, too, and a run that is
        refused in the middle of one goes back to its beginning.
        """
        after = (
            "once with ddl=apply, which changes them between rows of the same transaction."
            if is_within
            else "again: a change that comes later is followed, or told, in its turn."
        )
        self.hint = (
            f"Give them the names that these rows have ({self._statements}), then run {after} Or: "
            f"{recopying(self.relation)}{self._vouching}"
        )


def renamed_columns(
    connection: psycopg.Connection[Any], relation: Relation, renamed: Mapping[str, str], *, pipeline: str
) -> RenamedColumns:
    """The error, with the statements for columns that are there. Errors: psycopg's own."""
    own = relation.schema, relation.table
    there = _names(connection, own)
    text = "; ".join(one.as_string(connection) for one in giving_names(connection, own, renamed))
    is_taken = any(name in renamed.values() and name not in renamed for name in there)
    return RenamedColumns(relation, renamed, text, vouching(relation, pipeline) if is_taken else "")


def giving_names(
    connection: psycopg.Connection[Any], table: Name, renamed: Mapping[str, str]
) -> tuple[sql.Composed, ...]:
    """The statements that give columns other names, by their names: each where it is inherited from, and behind others
    that move what has such a name out of the way. Errors: psycopg's own.
    """
    there = _names(connection, table)
    strangers = [name for name in there if name in renamed.values() and name not in renamed]
    owners = {name: owner_of_column(connection, quoted(*table), quoted(name)) for name in (*strangers, *renamed)}
    aside = [_renaming_one(owners[name] or table, name, out_of_the_way(name)) for name in strangers]
    pairs = [(owners[name] or table, name, wanted) for name, wanted in renamed.items()]
    return (*aside, *renaming(pairs, there))


def lost_columns(relation: Relation, names: Sequence[str], *, pipeline: str) -> TargetError:
    """The error of columns that are gone, and whose names others have."""
    return TargetError(
        "columns that had these values so far are gone at the target, with the values of older rows, and others have "
        f"their names: {', '.join(names)}",
        table=relation.name,
        column=names[0],
        hint=f"{recopying(relation)}{vouching(relation, pipeline)}",
    )


def vouching(relation: Relation, pipeline: str) -> str:
    """The part of a hint that tells how to take a table's columns by their names again."""
    forget = sql.SQL("UPDATE {}.applied_table SET place = NULL WHERE pipeline = {} AND source_oid = {}").format(
        sql.Identifier(SCHEMA), sql.Literal(pipeline), sql.Literal(relation.oid)
    )
    what = " Or, if what has these names there has all of the values: run"
    return f"{what} {forget.as_string()} at the target, which takes columns by their names; then run again."


def renaming(pairs: Sequence[tuple[Name, str, str]], there: Collection[str]) -> list[sql.Composed]:
    """The statements that rename columns, given as the table that each is altered in, its former name and its new one:
    by way of names in between, where one takes another's. `there`: the names that the table has.
    """
    if not {old for _, old, _ in pairs} & {new for _, _, new in pairs}:
        return [_renaming_one(*pair) for pair in pairs]
    free = (name for name in map(_ASIDE.format, count()) if name not in there)
    aside = [(*pair, name) for pair, name in zip(pairs, free, strict=False)]
    return [
        *(_renaming_one(table, old, name) for table, old, _, name in aside),
        *(_renaming_one(table, name, new) for table, _, new, name in aside),
    ]


def out_of_the_way(name: str) -> str:
    """The name of a column that had this one, which another column is to have."""
    return suffixed(name, _IN_THE_WAY)


def _names(connection: psycopg.Connection[Any], table: Name) -> list[str]:
    found = connection.execute(
        "SELECT attname::text FROM pg_catalog.pg_attribute WHERE attrelid = "
        "to_regclass(format('%%I.%%I', %s::text, %s::text)) AND attnum > 0 AND NOT attisdropped",
        table,
    ).fetchall()
    return [str(name) for (name,) in found]


def _renaming_one(table: Name, old: str, new: str) -> sql.Composed:
    names = sql.Identifier(*table), sql.Identifier(old), sql.Identifier(new)
    return sql.SQL("ALTER TABLE {} RENAME COLUMN {} TO {}").format(*names)
