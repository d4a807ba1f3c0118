"""Columns that took each other's names: renamed by way of names in between, or left to a person."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from psycopg import sql

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import PlanError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import command_line
from airflow_parallel_apply.pipeline.target.postgres.catalog.renamed_columns import renaming
from airflow_parallel_apply.pipeline.target.postgres.redefine.alterations import freeing
from airflow_parallel_apply.pipeline.target.postgres.redefine.child_columns import is_out_of_the_way
from airflow_parallel_apply.pipeline.target.postgres.redefine.found_columns import Columns
from airflow_parallel_apply.pipeline.target.postgres.session import Connection
from airflow_parallel_apply.pipeline.target.redefinition import ColumnChange
from airflow_parallel_apply.pipeline.target.skipping import SKIPPING


def rename_columns(
    connection: Connection,
    relation: Relation,
    changes: Sequence[ColumnChange],
    types: Mapping[str, str],
    owners: Mapping[str, tuple[str, str]],
    present: Mapping[int, str | None],
    *,
    ddl: DdlPolicy,
) -> tuple[tuple[ColumnChange, ...], tuple[sql.Composed, ...]]:
    """Rename the columns of which one takes another's former name; return the changes that are left, and the statements
    that were run. `types`: the types of the target's columns, by name. `owners`: the tables that some are inherited
    from. `present`: see `present_columns`; what it shows to be done is not among the changes.

    In a chain the first name and the last one show whether it was done. Names that only changed hands show it by their
    numbers, and where these are not known by their types alone. Errors: `PlanError`.
    """
    left, done = list(changes), list[sql.Composed]()
    for chain in _chains(changes):
        olds = [change.old.name for change in chain if change.old is not None]
        news = [change.new.name for change in chain if change.new is not None]
        is_exchange, is_left = set(olds) == set(news), is_exchange_left(chain, present)
        is_done = not is_left and _is_exchanged(chain, types, ddl)
        if not (is_done if is_exchange else olds[0] not in types and news[-1] in types):
            is_certain = is_left or (not is_exchange and news[-1] not in types and set(olds) <= set(types))
            is_own = owners.keys().isdisjoint(olds)
            names = list(zip(olds, news, strict=True))
            pairs = [(owners.get(old, (relation.schema, relation.table)), old, new) for old, new in names]
            statements = [*freeing(connection, relation), *renaming(pairs, types)]
            if not is_certain or not is_own or ddl is not DdlPolicy.APPLY:
                raise _left(connection, relation, names, statements, is_certain=is_certain)
            for statement in statements:
                connection.execute(statement)
            done += statements
        for change in chain:
            if change.old is not None and change.new is not None:
                left[left.index(change)] = replace(change, old=replace(change.old, name=change.new.name))
    return tuple(left), tuple(done)


def left_of_present(changes: Sequence[ColumnChange], present: Mapping[int, str | None]) -> Iterator[ColumnChange]:
    """The changes, from the names that the target's columns have by now, as far as these are known, without those that
    are done. A dropped column that somebody put aside there stays, unless it has a name that another one is to have.
    One that was moved out of the way of a parent's goes. One whose name another one has is gone already.
    """
    news = {change.new.name for change in changes if change.new is not None}
    for change in changes:
        number = None if change.old is None else change.old.number
        if change.old is None or number is None or number not in present:
            if change.old is None or change.new is not None or change.old.name not in present.values():
                yield change
            continue
        name = present[number]
        if change.new is None:
            if name is not None and (name in {change.old.name, *news} or is_out_of_the_way(name, change.old.name)):
                yield replace(change, old=replace(change.old, name=name))
        elif name is None:
            yield change
        elif (name, change.old.type_name) != (change.new.name, change.new.type_name):
            yield replace(change, old=replace(change.old, name=name))


def is_exchange_left(changes: Sequence[ColumnChange], present: Mapping[int, str | None]) -> bool:
    """True if columns are among these that are known to have each other's names still."""
    return any(
        {one.old.name for one in chain if one.old} == {one.new.name for one in chain if one.new}
        and all(one.old is not None and present.get(one.old.number or 0) == one.old.name for one in chain)
        for chain in _chains(changes)
    )


def left_by_computed(changes: Iterable[ColumnChange], relation: Relation, columns: Columns) -> Iterator[ColumnChange]:
    """The changes, without those that a computed column shows to be done: one that has the name which a plain column
    gave up, at the source as at the target.
    """
    names = {name for name in relation.unsent_computed if name in columns and columns[name].generated}
    for change in changes:
        if change.old is None or change.old.name not in names:
            yield change
        elif change.new is not None:
            yield replace(change, old=replace(change.old, name=change.new.name))


def _chains(changes: Sequence[ColumnChange]) -> Iterator[list[ColumnChange]]:
    """Renamings of which each one takes the name that the next one gives up."""
    renamed = {one.old.name: one for one in changes if one.old and one.new and one.old.name != one.new.name}
    taken = {one.new.name for one in renamed.values() if one.new is not None}
    for first in sorted(renamed, key=lambda name: name in taken):
        chain: list[ColumnChange] = []
        name: str | None = first
        while name is not None and (change := renamed.pop(name, None)) is not None:
            chain.append(change)
            name = change.new.name if change.new is not None else None
        if len(chain) > 1:
            yield chain


def _is_exchanged(chain: Sequence[ColumnChange], types: Mapping[str, str], ddl: DdlPolicy) -> bool:
    before = {one.old.name: one.old.type_name for one in chain if one.old is not None}
    after = {one.new.name: one.new.type_name for one in chain if one.new is not None}
    is_as_after = all(types.get(name) == type_name for name, type_name in after.items())
    return is_as_after and (before != after or ddl is DdlPolicy.SKIP)


def _left(
    connection: Connection,
    relation: Relation,
    names: Sequence[tuple[str, str]],
    statements: Sequence[sql.Composed],
    *,
    is_certain: bool,
) -> PlanError:
    what = ", ".join(f"{old} was renamed to {new}" for old, new in names)
    text = "; ".join(statement.as_string(connection) for statement in statements)
    after = "run again" if is_certain else f"{SKIPPING}, which takes it as done"
    return PlanError(
        f"at the source columns of {relation.name} took each other's names ({what}), which the target, as far "
        "as can be seen, has not followed",
        table=relation.name,
        column=names[0][0],
        hint=f"Rename them at the target ({text}), then {after}: everything before is applied. Or: "
        f"`{command_line('recopy', [relation.name])}` copies the table anew; where types changed hands, rename first.",
    )
