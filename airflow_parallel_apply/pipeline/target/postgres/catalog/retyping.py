"""The statements that give a column of the target a type that takes the source's values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from airflow_parallel_apply.pipeline.model.sent_ddl import has_word
from airflow_parallel_apply.pipeline.target.postgres.catalog.exact_session import exact_session
from airflow_parallel_apply.pipeline.target.postgres.catalog.fit import Fit, differ_in_limits, fit, is_cast_by_text
from airflow_parallel_apply.pipeline.target.postgres.catalog.untold import recopying
from airflow_parallel_apply.postgres.quoting import quoted

if TYPE_CHECKING:
    from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable

_TEXTS: Final = ("text", "character varying")
"""Types that take the value of any other one, and so a default's."""


def fit_of_column(table: TargetTable, index: int) -> Fit:
    """Tell how a column of the target takes values of the source's; one that is not there, or computed, takes none."""
    column = table.relation.columns[index]
    found = table.columns.get(column.name)
    if found is None or found.generated:
        return Fit.EXACT
    how = fit(column.type_name, found.type_sql)
    return Fit.REFUSES if how is Fit.UNKNOWN and column.type_name != found.declared_sql else how


def retyping(table: TargetTable, index: int) -> tuple[str, ...]:
    """Statements that keep every text which the column prints for the pipeline: a cast of most types does not, nor do
    another session's settings. A default that the server casts to no such type goes: rows come with their values. Where
    the target's type has the name of the source's, and takes less, it is text that takes all.
    """
    relation = table.relation
    column = relation.columns[index]
    found = table.columns[column.name]
    name, wanted = quoted(column.name), column.type_name
    if found.declared_sql == wanted:
        wanted = "text[]" if wanted.endswith("[]") else "text"
    is_cast = is_cast_by_text(found.type_sql, wanted)
    value = f"{name}::{wanted}"
    if not is_cast:
        value = f"CASE num_nulls({name}) WHEN 0 THEN concat({name})::{wanted} END"
    alter = f"ALTER COLUMN {name} TYPE {wanted} USING {value}"
    if found.has_default and not is_cast and not wanted.startswith(_TEXTS):
        alter = f"ALTER COLUMN {name} DROP DEFAULT, {alter}"
    settings = () if is_cast else exact_session(found.type_sql, wanted)
    return (*settings, f"ALTER TABLE {quoted(relation.schema, relation.table)} {alter}")


def unlike(table: TargetTable, names: Sequence[str]) -> tuple[int, ...]:
    """The indexes in the relation of those of these columns that have another type than the source's: what is written
    in the same words may be another function or operator then, or behind another cast.
    """
    found = []
    for index, column in enumerate(table.relation.columns):
        here = table.columns.get(column.name) if column.name in names else None
        if here is not None and not any(
            differ_in_limits(column.type_name, one) for one in (here.type_sql, here.declared_sql)
        ):
            found.append(index)
    return tuple(found)


def retyping_for(table: TargetTable, definition: str) -> tuple[str, ...]:
    """The statements that give the source's types to those columns which a computed column's definition may read."""
    read = [column.name for column in table.relation.columns if has_word(definition, column.name)]
    return tuple(command for index in unlike(table, read) for command in retyping(table, index))


def retyped(table: TargetTable, index: int) -> str:
    """The hint for a column that does not take the source's values."""
    commands, column = "; ".join(retyping(table, index)), table.relation.columns[index]
    made = ""
    if "." in column.type_name and column.type_name != table.columns[column.name].declared_sql:
        kind = column.type_name.removesuffix("[]")
        made = (
            f" If the target lacks the type {kind}: `parallel-apply check` prints the command that makes it; run that "
        )
        made += "first."
    return (
        f"Run {commands} at the target; then run again. Should it fail for a value that is there, empty the table and "
        f"run it again; then {recopying(table.relation)}{made}"
    )
