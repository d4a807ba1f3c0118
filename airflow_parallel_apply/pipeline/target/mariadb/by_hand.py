"""The command by which a person brings a table to a newer definition: a renamed column is never added anew, and a new
one has in older rows what it has at the source.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from airflow_parallel_apply.pipeline.errors import START_ANEW
from airflow_parallel_apply.pipeline.model.change import Column, Relation
from airflow_parallel_apply.pipeline.model.kept_texts import column_keeps_texts
from airflow_parallel_apply.pipeline.target.mariadb.mapping import Refused, form_of, literal, proposed_type
from airflow_parallel_apply.pipeline.target.mariadb.quoting import shown
from airflow_parallel_apply.pipeline.target.mariadb.session import Session
from airflow_parallel_apply.pipeline.target.mariadb.tables import TargetTable, find_table
from airflow_parallel_apply.pipeline.target.redefinition import Redefinition, compare_definitions

_NULL: Final = "NULL"
_EXCHANGED = (
    "Without the RENAME COLUMN, where you have done that since a run said so; if somebody did it before, the columns "
    f"have values of each other, and only a new start leads on. {START_ANEW}"
)


def commands(session: Session, older: Relation, newer: Relation, *, is_renamed: bool) -> tuple[str, ...]:
    """All that is left to be done to its columns, names first, as far as the definitions tell; nothing where they do
    not, or no table is there. `is_renamed`: False where it has its former name yet. Errors: the driver's own.
    """
    table = find_table(session, newer if is_renamed else older)
    found = compare_definitions(older, newer)
    if table is None:
        return ()
    computed = {column.name for column in table.columns.values() if column.is_generated}
    if found.uncertain or found.unclear:
        # One that the target computes is a plain one at the source now, whichever it is.
        plain = [one for one in found.unclear if one.name in computed]
        changes = [text for one in plain for text in (f"DROP COLUMN {shown(one.name)}", adding(one))]
    else:
        changes = list(_changes(found, set(table.columns), computed))
    altering = f"ALTER TABLE {shown(*session.address.place(newer))}"
    return tuple(f"{altering} {', '.join(parts)}" for parts in (changes, list(_retyped(found, table))) if parts)


def notes(session: Session, older: Relation, newer: Relation, *, is_renamed: bool) -> Iterator[str]:
    """The values that rows older than a column have in it, where the source gave them some, or where the target has
    such a column; and the columns of which nothing tells whether they are those of before. Errors: the driver's own.
    """
    table = find_table(session, newer if is_renamed else older)
    here = {} if table is None else table.columns
    there = {column.name for column in here.values() if not column.is_generated} - {one.name for one in older.columns}
    found = compare_definitions(older, newer)
    renamed = _renamed(found)
    if any(after in renamed for after in renamed.values()):
        yield _EXCHANGED
    former = {column.name for column in older.columns}
    for old, after in renamed.items():
        if table is not None and {old, after} <= table.columns.keys() and after not in former:
            yield (
                f"the target has both {old} and {after}: the rows that were applied have the column's values in {old}, "
                f"and are to have them in {after}"
            )
    for change in found.changes:
        new = change.new
        if change.old is None and new is not None and new.name in there:
            yield f"the target has {new.name} already: {_older_rows(new)}"
        elif change.old is None and new is not None and new.fill != _NULL and literal(new) is None:
            yield _older_rows(new)
        elif change.old is not None and new is not None and not column_keeps_texts(change.old, new):
            yield (
                f"{new.name} became {new.type_name} at the source, by a cast or by an expression: older rows are to "
                "have in it what the source's have since, whatever type it has here"
            )
    for column in dict.fromkeys((*found.uncertain, *found.unclear)):
        yield f"nothing tells whether {column.name} is the column of before, whose values older rows have"


def recomputed(session: Session, older: Relation, newer: Relation) -> tuple[str, ...]:
    """Columns that both sides compute, and the source otherwise than before. Errors: the driver's own."""
    table = find_table(session, newer)
    there = {column.name for column in table.unsent} if table is not None else set()
    return tuple(
        f"the source has column {name} as {text} by now" for name, text in newer.recomputed(older) if name in there
    )


def adding(column: Column) -> str:
    """The part of an ALTER TABLE that adds a column, with what older rows have in it."""
    value, type_ = literal(column), proposed_type(column)
    # MySQL takes a default of these types as an expression only.
    default = f"({value})" if type_.startswith("long") else value
    return f"ADD COLUMN {shown(column.name)} {type_}{'' if value is None else f' DEFAULT {default}'}"


def _changes(found: Redefinition, there: set[str], computed: set[str]) -> Iterator[str]:
    """The server makes them together: columns may exchange their names. `computed`: those that the target computes."""
    renamed = _renamed(found)
    has_new_name = {new for old, new in renamed.items() if old not in there}
    dropped = [one.old.name for one in found.changes if one.old is not None and one.new is None]
    dropped = [name for name in dropped if name in there - has_new_name]
    dropped += [one.new.name for one in found.changes if one.old is None and one.new and one.new.name in computed]
    for name in dict.fromkeys(dropped):
        yield f"DROP COLUMN {shown(name)}"
    for old, new in renamed.items():
        # One whose new name is another's former one may have it already: names do not tell.
        if old in there and (new not in there or new in renamed or new in dropped):
            yield f"RENAME COLUMN {shown(old)} TO {shown(new)}"
            there = there - {old}
    for column in (one.new for one in found.changes if one.old is None):
        if column is not None and (column.name not in there or column.name in dropped):
            yield adding(column)


def _retyped(found: Redefinition, table: TargetTable) -> Iterator[str]:
    """Under their new names."""
    for change in found.changes:
        old, new = change.old, change.new
        if old is None or new is None or old.type_name == new.type_name:
            continue
        here = table.columns.get(old.name, table.columns.get(new.name))
        if here is None or here.is_generated:
            continue
        try:
            form_of(new, here)
        except Refused as error:
            if error.wanted:
                yield f"MODIFY COLUMN {shown(new.name)} {error.wanted}{'' if here.is_nullable else ' NOT NULL'}"


def _older_rows(column: Column) -> str:
    value = literal(column) or column.fill
    if value is None:
        return f"copy the values that older rows have in {column.name} from the source: the log does not tell them"
    return f"older rows are to have {value} in {column.name}, as at the source"


def _renamed(found: Redefinition) -> dict[str, str]:
    """Columns by their former names."""
    return {
        change.old.name: change.new.name
        for change in found.changes
        if change.old is not None and change.new is not None and change.old.name != change.new.name
    }
