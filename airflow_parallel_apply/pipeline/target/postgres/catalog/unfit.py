"""Tables of the target that cannot take the source's rows as they are, or have other ones: what to run there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.model.change import Column, Relation
from airflow_parallel_apply.pipeline.model.finding import command_line
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.model.sent_ddl import NamesThen
from airflow_parallel_apply.pipeline.target.postgres.catalog.fit import name_of_built_in
from airflow_parallel_apply.pipeline.target.postgres.catalog.retyping import retyping, retyping_for
from airflow_parallel_apply.pipeline.target.postgres.catalog.table_names import Name, giving_back
from airflow_parallel_apply.pipeline.target.postgres.catalog.untold import recopying
from airflow_parallel_apply.postgres.generated_text import as_taken
from airflow_parallel_apply.postgres.quoting import quoted, suffixed

if TYPE_CHECKING:
    from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable

_SEVERAL_TEXTS: Final = (KeyKind.DECIMAL, KeyKind.FLOAT, KeyKind.BLANK_PADDED, KeyKind.NOT_CANONICAL)
"""Keys whose equal values may have several texts."""
_TEXTS: Final = ("text", "character varying")


class MissingTable(TargetError):
    """The target has no table of a definition's name. See `name_other_name`, too."""

    def __init__(self, relation: Relation, server_version: int) -> None:
        super().__init__(
            "the target has no such table",
            table=relation.name,
            hint=f"Run {creation(relation, server_version)} at the target. If it was renamed there, give it this name "
            f"back instead; if it was there before and is gone, run `{command_line('recopy', [relation.name])} "
            "--create-tables`, which makes it and copies its rows; then run again.",
        )
        self.relation = relation


class RefusedStatement(TargetError):
    """The target refuses DDL that was sent, when tables had these `names` at the source. See `name_other_name`, too."""

    def __init__(self, message: str, *, hint: str, names: Iterable[NamesThen]) -> None:
        super().__init__(message, hint=hint)
        self.names = {one.oid: one.table for one in names}


class RenamedTable(TargetError):
    """The table that had a definition's rows so far is called `found` at the target, whatever has its name by now.
    `statements`: what gives it back. See `name_other_name`, too.
    """

    def __init__(self, relation: Relation, found: Name, statements: str) -> None:
        super().__init__(
            f"the table that had these rows so far is called {'.'.join(found)} at the target", table=relation.name
        )
        self.relation = relation
        self.found = found
        self._statements = statements
        self.say(is_within=False)

    def say(self, *, is_within: bool) -> None:
        """Complete the hint. `is_within`: as in `giving_back`."""
        name, found = self.relation.name, ".".join(self.found)
        self.hint = (
            f"{giving_back(self.found, self._statements, is_within=is_within)} Or, if what is called {name} there was "
            f"put in its place: `{command_line('recopy', [name])}`, or drop {found} where {name} has all "
            "of its rows; then run again."
        )


def creation(relation: Relation, server_version: int) -> str:
    """The CREATE TABLE with all columns and the key of a definition."""
    columns = [f"{quoted(column.name)} {column.type_name}" for column in relation.columns]
    key = [quoted(name) for name in relation.key_names]
    sent = {column.name for column in relation.columns}
    computed = [
        f"{quoted(name)} {as_taken(text, server_version)}" for name, text in relation.expressions if name not in sent
    ]
    parts = [*columns, *computed, *([f"PRIMARY KEY ({', '.join(key)})"] if key else [])]
    return f"CREATE TABLE {quoted(relation.schema, relation.table)} ({', '.join(parts)})"


def replacing(relation: Relation, name: str, definition: str, server_version: int, *, is_there: bool) -> str:
    """The statement by which a column gets this definition, whatever it was. `definition`: as ADD COLUMN takes it."""
    drop = f"DROP COLUMN {quoted(name)}, " if is_there else ""
    add = f"ADD COLUMN {quoted(name)} {as_taken(definition, server_version)}"
    return f"ALTER TABLE {quoted(relation.schema, relation.table)} {drop}{add}"


def computing(table: TargetTable, name: str, server_version: int) -> Sequence[str]:
    """The statements after which the target computes a column as the source does; none where that is not known."""
    definition = dict(table.relation.expressions).get(name)
    if not definition:
        return ()
    replaced = replacing(table.relation, name, definition, server_version, is_there=name in table.columns)
    return (*retyping_for(table, definition), replaced)


def rows_differ(table: TargetTable) -> str:
    """The hint for rows of the history that the target does not have as it should."""
    relation = table.relation
    told_apart = [
        command
        for index, one in enumerate(relation.columns)
        if one.key and _compares_values(one) and table.columns[one.name].plain_type_sql in _TEXTS
        for command in retyping(table, index)
    ]
    first = ""
    if told_apart:
        first = (
            f"If the table has an equal key in another form (1.0 for 1.00), run {'; '.join(told_apart)}. Otherwise: "
        )
    return (
        f"{first}Somebody else changed the target, or the copies differed at the start: `parallel-apply compare` shows "
        f"where. Make the rows the source's there, or: {recopying(relation)}"
    )


def _compares_values(column: Column) -> bool:
    """True if the type of a column, which is built in, has equal values of several texts, whatever its collation."""
    name = name_of_built_in(column.type_name)
    collated = _TEXTS if column.kind is KeyKind.BLANK_PADDED else (*_TEXTS, "character")
    return column.kind in _SEVERAL_TEXTS and name is not None and name not in collated


def renaming_away(relation: Relation, kind: str) -> str:
    """The statement that frees a table's name of what is no table."""
    aside = quoted(suffixed(relation.table, "_aside"))
    return f"ALTER {kind.upper()} {quoted(relation.schema, relation.table)} RENAME TO {aside}"


def require_fit(
    relation: Relation, table: TargetTable | None, server_version: int, instead: str | None = None
) -> TargetTable:
    """`instead`: what has the name of a missing table. Errors: `TargetError` that names the first missing table or
    column, or a column that one side alone computes.
    """
    if table is None and instead is not None:
        raise TargetError(
            f"the target has a {instead} of that name, and no table",
            table=relation.name,
            hint=f"Run {renaming_away(relation, instead)}; {creation(relation, server_version)} at the target; then "
            f"{recopying(relation)} Or give this name to the table there that has the rows.",
        )
    if table is None:
        raise MissingTable(relation, server_version)
    types = {column.name: column.type_name for column in relation.columns}
    for name in table.missing_columns:
        add = replacing(relation, name, types[name], server_version, is_there=False)
        raise TargetError(
            "the target's table lacks a column of the source's",
            table=relation.name,
            column=name,
            hint=f"Run {add} at the target. Older rows have no values in it then: {recopying(relation)}",
        )
    for name in (*table.uncomputed_columns, *table.lacking_computed):
        what = "at the target it is an ordinary one" if name in table.columns else "the target's table lacks it"
        found = computing(table, name, server_version)
        do = "Make it at the target as the source has it, then run again. Where its expression reads columns that the "
        do += f"target has not got so far: {recopying(relation)}"
        raise TargetError(
            f"the source computes the column and does not send it, and {what}",
            table=relation.name,
            column=name,
            hint=f"Run {'; '.join(found)} at the target, then run again." if found else do,
        )
    for name in table.overruled_columns:
        make = replacing(relation, name, types[name], server_version, is_there=True)
        raise TargetError(
            "the target computes a column that the source does not compute, so the source's values are not stored",
            table=relation.name,
            column=name,
            hint=f"Run {make} at the target, or DROP EXPRESSION of a stored one. Then {recopying(relation)}",
        )
    return table
