"""Making Delta tables, and bringing them to newer definitions: columns are added, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.schema import Schema

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import PlanError, TargetError
from airflow_parallel_apply.pipeline.model.change import Column, Relation
from airflow_parallel_apply.pipeline.model.sent_ddl import shown_ddl
from airflow_parallel_apply.pipeline.target.delta.columns import lake_schema, table_schema
from airflow_parallel_apply.pipeline.target.delta.place import Lake
from airflow_parallel_apply.pipeline.target.delta.tables import (
    Outrun,
    commit_nothing,
    conditionally,
    open_table,
    read_columns,
    schema_of,
    sync,
    table_errors,
)
from airflow_parallel_apply.pipeline.target.redefinition import ColumnChange, Redefinition, compare_definitions
from airflow_parallel_apply.pipeline.target.steps import Redefine, Statement

_ADDS_COLUMNS: Final = re.compile(
    # The settings of whoever sent it go before it.
    r"""(?:\s*SET LOCAL \w+ = (?:[^;'"]|'[^']*'|"[^"]*")*;)*"""
    r"\s*ALTER\s+TABLE\s+[^;']*?\sADD\s+(COLUMN\s+)?(?!CONSTRAINT|PRIMARY|UNIQUE|CHECK|FOREIGN)[^;']*;?\s*",
    re.IGNORECASE,
)


def make_table(lake: Lake, relation: Relation) -> None:
    """Make a table without rows, where there is none. Errors: `Unavailable`."""
    uri = lake.table_uri(relation.schema, relation.table)
    if open_table(lake, uri) is not None:
        return
    try:
        with table_errors("prepare", table=relation.name):
            if lake.is_local:
                Path(uri).mkdir(parents=True, exist_ok=True)
            DeltaTable.create(
                uri,
                schema=lake_schema(lake, relation),
                name=relation.name,
                mode="error",
                storage_options=dict(lake.options) or None,
                commit_properties=conditionally(),
            )
    except Outrun:
        return
    sync(lake, uri, 0)


def require_followable(step: Redefine, older: Relation, newer: Relation) -> tuple[str, ...]:
    """The columns that are to be added; raise `PlanError` for a definition that is another one in more than that."""
    if step.ddl is DdlPolicy.SKIP:
        return ()
    found = compare_definitions(older, newer)
    others = [change for change in found.changes if change.old is not None or change.new is None]
    is_filled = any(change.new is not None and change.new.fill != "NULL" for change in found.changes)
    is_more = bool(others or found.uncertain or found.unclear or (is_filled and not step.is_emptied))
    if older.name != newer.name and newer.renaming is not None:
        pairs = ", ".join(f"{'.'.join(before)} to {'.'.join(after)}" for before, after in newer.renaming.pairs)
        raise PlanError(
            f"{newer.name}: tables were renamed at the source, and a Delta lake does not follow{_told(found)}",
            op="apply",
            table=newer.name,
            hint=f"Move the tables' directories in the lake ({pairs}), change columns by hand, and {step.skipping}.",
        )
    if step.ddl is DdlPolicy.REFUSE or is_more or older.name != newer.name:
        raise _refused(step, newer, f"its columns were changed at the source{_told(found)}")
    if older.key_names != newer.key_names:
        raise _refused(step, newer, "its key was changed at the source")
    return tuple(change.new.name for change in found.changes if change.new is not None)


def require_redundant(step: Statement) -> None:
    """Raise `PlanError` for DDL text that says more than that columns are added, which the definition says as well."""
    if step.gives_other_values or not _ADDS_COLUMNS.fullmatch(step.text):
        raise PlanError(
            f"a Delta lake cannot run this: {shown_ddl(step.text)}",
            op="apply",
            hint=f"Change the lake's tables by hand as it says, and {step.skipping}.",
        )


def require_addable(table: DeltaTable, relation: Relation, names: Collection[str]) -> None:
    """Raise `TargetError` where the lake has one of the columns already, and not as a new one would be. Errors:
    `Unavailable`.
    """
    here = {field.name.lower(): field for field in schema_of(table)}
    for field in table_schema(relation):
        found = here.get(field.name.lower()) if field.name in names else None
        if found is not None and (found != field or _has_values(table, relation, found.name)):
            raise TargetError(
                f"{relation.name} has a column {found.name} ({found.type}) in the lake already, and the source a new "
                f"one, {field.name} ({field.type}), in which older rows have nothing",
                op="commit",
                table=relation.name,
                column=field.name,
                hint="Rewrite the lake's table without that column, or, if name and type are the same, set it to null "
                "in all rows; then run again.",
            )


def _has_values(table: DeltaTable, relation: Relation, name: str) -> bool:
    batches = read_columns(table, relation.name, [name])
    return any(batch.column(0).null_count < batch.num_rows for batch in batches)


def add_columns(table: DeltaTable, relation: Relation, transactions: Mapping[str, int]) -> None:
    """Add the columns that the relation has and the table has not. Errors: `Outrun`, `Unavailable`."""
    known = schema_of(table).names
    added = pa.schema([field for field in table_schema(relation) if field.name not in known])
    with table_errors("commit", table=relation.name):
        if added.names:
            fields = Schema.from_arrow(added).fields
            table.alter.add_columns(fields, commit_properties=conditionally(transactions))
        else:
            commit_nothing(table, transactions)


def _told(found: Redefinition) -> str:
    """The changes in words."""
    changes = [_change(change) for change in found.changes]
    changes += [f"{one.name} may be another column" for one in dict.fromkeys((*found.uncertain, *found.unclear))]
    return f" ({', '.join(changes)})" if changes else ""


def _change(change: ColumnChange) -> str:
    match change:
        case ColumnChange(old=Column(name=before), new=None):
            return f"{before} is gone"
        case ColumnChange(old=None, new=Column(name=name, fill="NULL")):
            return f"{name} is new, and null in older rows"
        case ColumnChange(old=None, new=Column(name=name, fill=fill)):
            return f"older rows have {fill or 'values that nothing tells'} in the new column {name}"
        case ColumnChange(old=Column(name=before), new=Column(name=name, type_name=type_name)):
            return f"{before} is {name} now" if name != before else f"{name} is {type_name} now"
        case _:
            raise ValueError(f"neither an old nor a new column: {change}")


def _refused(step: Redefine, relation: Relation, what: str) -> PlanError:
    return PlanError(
        f"{relation.name}: {what}, which a Delta lake does not follow: it adds columns that are null in older rows",
        op="apply",
        hint=f"Change the lake's table by hand, and {step.skipping}.",
    )
