"""The commands by which a person brings a table to a newer definition: a renamed column is never added anew."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.mariadb.mapping import proposed_type
from airflow_parallel_apply.pipeline.target.mariadb.quoting import shown
from airflow_parallel_apply.pipeline.target.mariadb.session import Session
from airflow_parallel_apply.pipeline.target.mariadb.tables import find_table
from airflow_parallel_apply.pipeline.target.redefinition import compare_definitions

_NULLS = (None, "NULL")


def commands(session: Session, older: Relation, newer: Relation, *, is_renamed: bool) -> tuple[str, ...]:
    """All that is left to be done to its columns, as far as the definitions tell; nothing where they do not, or no
    table is there. `is_renamed`: False where it has its former name yet. Errors: the driver's own.
    """
    table = find_table(session, newer if is_renamed else older)
    found = compare_definitions(older, newer)
    if table is None or found.uncertain or found.unclear:
        return ()
    name = shown(*session.address.place(newer))
    return tuple(f"ALTER TABLE {name} {change}" for change in _changes(older, newer, set(table.columns)))


def notes(older: Relation, newer: Relation) -> Iterator[str]:
    """The values that rows older than a column have in it, where the source gave them some; and the columns of which
    nothing tells whether they are those of before.
    """
    found = compare_definitions(older, newer)
    for change in found.changes:
        new = change.new
        if change.old is None and new is not None and new.fill not in _NULLS:
            yield f"older rows have {new.fill} in {new.name} at the source: add it with that as its DEFAULT"
    for column in dict.fromkeys((*found.uncertain, *found.unclear)):
        yield f"nothing tells whether {column.name} is the column of before, whose values older rows have"


def recomputed(session: Session, older: Relation, newer: Relation) -> tuple[str, ...]:
    """Columns that both sides compute, and the source otherwise than before. Errors: the driver's own."""
    table = find_table(session, newer)
    there = {column.name for column in table.unsent} if table is not None else set()
    return tuple(
        f"the source has column {name} as {text} by now" for name, text in newer.recomputed(older) if name in there
    )


def _changes(older: Relation, newer: Relation, there: set[str]) -> Iterator[str]:
    for change in compare_definitions(older, newer).changes:
        old, new = change.old, change.new
        if new is None:
            continue
        if old is not None and old.name != new.name and old.name in there and new.name not in there:
            yield f"RENAME COLUMN {shown(old.name)} TO {shown(new.name)}"
        elif new.name not in there:
            yield f"ADD COLUMN {shown(new.name)} {proposed_type(new)}"
