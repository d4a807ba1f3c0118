"""Bring a table of the target to a newer definition of the source's, or say what a person has to do.

What the target has already is skipped, be it by a DDL message or by hand, so this may run any number of times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.model.change import Column, Relation
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.target.postgres.catalog.fit import Fit, fit, is_plain_cast
from airflow_parallel_apply.pipeline.target.postgres.catalog.inherited import heirs
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import find_tables
from airflow_parallel_apply.pipeline.target.postgres.catalog.untold import unclear, untold
from airflow_parallel_apply.pipeline.target.postgres.redefine import fills
from airflow_parallel_apply.pipeline.target.postgres.redefine.alterations import (
    UNTOLD,
    Alteration,
    altering,
    freed,
    left,
)
from airflow_parallel_apply.pipeline.target.postgres.redefine.applied_tables import note_tables, present_columns
from airflow_parallel_apply.pipeline.target.postgres.redefine.child_columns import freeing_name
from airflow_parallel_apply.pipeline.target.postgres.redefine.computing import computations, uncomputing
from airflow_parallel_apply.pipeline.target.postgres.redefine.found_columns import Columns, FoundColumn, find_columns
from airflow_parallel_apply.pipeline.target.postgres.redefine.lacking_types import lacks_type
from airflow_parallel_apply.pipeline.target.postgres.redefine.new_keys import index_new_key
from airflow_parallel_apply.pipeline.target.postgres.redefine.rename import rename
from airflow_parallel_apply.pipeline.target.postgres.redefine.rename_columns import (
    is_exchange_left,
    left_by_computed,
    left_of_present,
    rename_columns,
)
from airflow_parallel_apply.pipeline.target.postgres.redefine.told_types import forget_types, told_types
from airflow_parallel_apply.pipeline.target.postgres.redefine.uncast import require_cast, retyped, retyped_elsewhere
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.redefinition import ColumnChange, compare_definitions, dropped_computed

_UNLIKE: Final = (
    psycopg.errors.DatatypeMismatch,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedFunction,
    psycopg.errors.SyntaxError,
)
"""The target lacks what a type or an expression needs."""
_IN_THE_WAY: Final = (psycopg.errors.DependentObjectsStillExist, psycopg.errors.FeatureNotSupported)
"""Something at the target uses the column: a view, a generated column, a key."""


def follow(
    connection: Connection,
    session: Session,
    old: Relation,
    new: Relation,
    *,
    ddl: DdlPolicy,
    is_first: bool = False,
    is_emptied: bool = False,
    end_offset: Offset | None = None,
) -> None:
    """Under SKIP, what cannot be told from what was done by hand is taken for it; an exchange of columns whose numbers
    are known can. `is_first`: no row under the newer definition was applied yet, so that a new column holds in all rows
    what older ones have in it. `is_emptied`: the table is emptied next, so that nothing needs to be known of its rows.
    `end_offset`: as in `Redefine`.

    Errors: `PlanError` that names table and column, where something is left and may not or cannot be done here.
    """
    if not rename(connection, session, old, new, ddl=ddl, end_offset=end_offset):
        return
    found = compare_definitions(old, new)
    if found.unclear and ddl is not DdlPolicy.SKIP:
        raise untold(new, found.unclear)
    columns = find_columns(connection, new)
    present, told = present_columns(connection, session, new), told_types(connection, session, new)
    elsewhere = retyped_elsewhere(found.changes, columns, present, told) if is_first and not is_emptied else ()
    gone = dropped_computed(old, new)
    if retyped(old, new) and not all(_has(columns, column) for column in new.columns):
        # The server alters no type of a column that others are computed of.
        gone = (*gone, *(name for name, _ in new.remade(old)))
    done: list[sql.Composed] = []
    for name in gone if ddl is not DdlPolicy.SKIP else ():
        if name in columns and columns[name].generated:
            done += _alter(connection, new, _dropping(new, name, columns[name]), ddl, done)
            columns = find_columns(connection, new)
    is_there = all(_has(columns, column) for column in new.columns)
    if found.uncertain and not is_there:
        raise unclear(new, found.uncertain)
    # Columns that a message or a person made.
    there = [change.new for change in found.changes if change.old is None and change.new is not None]
    changes = tuple(left_by_computed(left_of_present(found.changes, present), new, columns))
    is_trusted = ddl is DdlPolicy.SKIP and not is_exchange_left(changes, present)
    if not is_there or not _shows(changes, new, columns, is_trusted=is_trusted):
        types = {name: column.type_name for name, column in columns.items()}
        owners = {name: column.owner for name, column in columns.items() if column.owner is not None}
        changes, renames = rename_columns(connection, new, changes, types, owners, present, ddl=ddl)
        done += renames
        columns = find_columns(connection, new)
        for change in changes:
            if change.old is None and change.new is not None and change.new.name not in columns:
                there.remove(change.new)
            alteration = _alteration(connection, session, new, columns, change, is_emptied=is_emptied)
            if alteration is not None:
                done += _alter(connection, new, alteration, ddl, done)
                columns = find_columns(connection, new)
    for column in there if not is_emptied else ():
        if column not in found.uncomputed and not columns[column.name].generated:
            _require_values(connection, new, column, columns[column.name], ddl, is_first=is_first)
    for column in found.uncomputed:
        if column.name in columns and columns[column.name].generated:
            done += _alter(connection, new, uncomputing(new, column, columns[column.name]), ddl, done)
    require_cast(connection, new, elsewhere, columns, only_brought=ddl is DdlPolicy.SKIP)
    if ddl is not DdlPolicy.SKIP:
        for alteration in computations(connection, old, new, columns):
            done += _alter(connection, new, alteration, ddl, done)
    if ddl is DdlPolicy.APPLY:
        index_new_key(connection, old, new)
    note_tables(connection, session, [new])
    forget_types(connection, session, new)


def is_followed(connection: Connection, session: Session, old: Relation, new: Relation) -> bool:
    """True if the target's table is to be seen to have the newer definition already: it cannot have the older one.
    Errors: psycopg's own.
    """
    found = compare_definitions(old, new)
    columns = find_columns(connection, new)
    is_left = any(name in columns and columns[name].generated for name in dropped_computed(old, new))
    if is_left or found.unclear or found.uncertain or not all(_has(columns, column) for column in new.columns):
        return False
    if old.name != new.name and find_tables(connection, [old]) != (None,):
        return False
    changes = left_of_present(found.changes, present_columns(connection, session, new))
    return _shows(tuple(left_by_computed(changes, new, columns)), new, columns, is_trusted=False)


def uncomputed_since(connection: Connection, old: Relation, new: Relation) -> tuple[tuple[str, str], ...]:
    """Statements by which the target computes what the source computes since an older definition, as far as it does
    not, each behind the beginning of its hint. A copy of the table does not bring that.
    """
    found = computations(connection, old, new, find_columns(connection, new))
    return tuple((one.first, statement.as_string(connection)) for one in found for statement in one.statements)


def _alter(
    connection: Connection,
    relation: Relation,
    alteration: Alteration,
    ddl: DdlPolicy,
    done: Sequence[sql.Composed] = (),
) -> tuple[sql.Composed, ...]:
    """Returns the statements that were run. `done`: those before it, which are undone where it is left to a person."""
    alteration = freed(connection, relation, alteration)
    by_hand = replace(alteration, statements=(*done, *alteration.statements)) if alteration.statements else alteration
    is_ours = alteration.is_certain and not (alteration.first or alteration.owner or alteration.strangers)
    if ddl is not DdlPolicy.APPLY or not is_ours or lacks_type(connection, alteration.type_name):
        raise left(connection, relation, by_hand)
    try:
        with connection.transaction():
            for statement in alteration.statements:
                connection.execute(statement)
    except _UNLIKE as error:
        by_hand = replace(by_hand, statements=(*done, *alteration.unlike, *alteration.statements))
        raise left(connection, relation, by_hand) from error
    except _IN_THE_WAY as error:
        raise left(connection, relation, by_hand, users=error.diag.message_detail or str(error)) from error
    return alteration.statements


def _has(columns: Columns, column: Column) -> bool:
    return column.name in columns and columns[column.name].type_name == column.type_name


def _require_values(
    connection: Connection, relation: Relation, column: Column, found: FoundColumn, ddl: DdlPolicy, *, is_first: bool
) -> None:
    """Give older rows the source's values in a column that the target has already: a default that is computed, even
    once for all rows, gives other ones here. Where the source has one for each row, they are not known.
    """
    what = f"was added as {column.type_name}"
    if column.fill is None:
        if ddl is not DdlPolicy.SKIP and fills.has_rows(connection, relation):
            what += UNTOLD
            raise left(connection, relation, Alteration(column.name, what, (), is_certain=False))
        return
    if not is_first or column.is_fill_assumed or (column.fill == "NULL" and found.is_required):
        # NULL may stand for what no row holds any more.
        return
    if fills.filling(connection, relation, column, found.type_name) is None:
        return
    what += f" and holds {column.fill} in older rows"
    if (retype := fills.retyping_to_fill(connection, relation, column, found.type_name)) is not None:
        # Those that have the column in common with others may have values there by now.
        is_alone = found.owner is None and not heirs(connection, relation.schema, relation.table)
        alteration = Alteration(column.name, what, (retype,), is_certain=is_alone, owner=found.owner)
        raise left(connection, relation, freed(connection, relation, alteration))
    only_brought = ddl is DdlPolicy.REFUSE
    by_hand = fills.fill(connection, relation, column, found.type_name, only_brought=only_brought)
    if by_hand:
        raise left(connection, relation, Alteration(column.name, what, by_hand))


def _shows(changes: Sequence[ColumnChange], relation: Relation, columns: Columns, *, is_trusted: bool) -> bool:
    """True if a table that has the new columns cannot be one that has the old ones: each former name is gone, or
    belongs to a new column of another type.
    """
    types = {column.name: column.type_name for column in relation.columns}
    for change in changes:
        old, new = change.old, change.new
        if old is None or (new is not None and new.name == old.name) or old.name not in columns:
            continue
        if old.name not in types or (types[old.name] == old.type_name and not is_trusted):
            return False
    return True


def _alteration(
    connection: Connection,
    session: Session,
    relation: Relation,
    columns: Columns,
    change: ColumnChange,
    *,
    is_emptied: bool,
) -> Alteration | None:
    """None where the target has it already, or a column of a type of its own keeps what older rows have."""
    old, new = change.old, change.new
    if old is None:
        if new is None or new.name in columns:
            return None
        return _addition(connection, relation, new, is_emptied=is_emptied)
    found = columns.get(old.name) or (columns.get(new.name) if new is not None else None)
    if found is None:
        return None
    if new is None:
        return _dropping(relation, old.name, found)
    if found.owner is not None and old.name in columns and old.name != new.name and _has_other(relation, old, new):
        # The table above has added one of its former name, which became one with it here.
        what = f"was renamed to {new.name}, and another one took its name"
        return Alteration(old.name, what, (), is_certain=False, owner=found.owner)
    alteration = _alteration_of_one(altering(relation, found), columns, old, new)
    if alteration is None:
        return None
    if new.name in columns:
        return replace(alteration, owner=found.owner)
    schema, table = found.owner or (relation.schema, relation.table)
    before, strangers = freeing_name(connection, session, replace(relation, schema=schema, table=table), new.name)
    statements = (*before, *alteration.statements)
    return replace(alteration, statements=statements, owner=found.owner, strangers=strangers)


def _has_other(relation: Relation, old: Column, new: Column) -> bool:
    """True if another column of the relation has this one's former name."""
    return any(column.name == old.name and column.number != new.number for column in relation.columns)


def _dropping(relation: Relation, name: str, found: FoundColumn) -> Alteration:
    """Children keep the column as their own until their definitions come: at the source they may have kept it."""
    if found.owner is not None and name in {column.name for column in relation.columns}:
        # It may be the one that was added since, with its table above.
        return Alteration(name, "was dropped and added again", (), is_certain=False, owner=found.owner)
    is_own = found.owner is None and not found.is_partitioned
    table = sql.SQL("ALTER TABLE ONLY {} ").format(sql.Identifier(relation.schema, relation.table))
    drop = (table if is_own else altering(relation, found)) + sql.SQL("DROP COLUMN {}").format(sql.Identifier(name))
    return Alteration(name, "was dropped", (drop,), owner=found.owner)


def _alteration_of_one(table: sql.Composed, columns: Columns, old: Column, new: Column) -> Alteration | None:
    what, statements, is_certain = [], [], True
    if old.name != new.name and old.name in columns:
        what.append(f"was renamed to {new.name}")
        # With both names there the renaming may have been done: to names that were swapped.
        is_certain = new.name not in columns
        rename = sql.SQL("RENAME COLUMN {} TO {}").format(sql.Identifier(old.name), sql.Identifier(new.name))
        statements.append(table + rename)
    has = columns.get(old.name if what else new.name)
    is_retyped = old.type_name != new.type_name and has is not None and has.type_name != new.type_name
    if is_retyped and has is not None and has.type_name == old.type_name:
        what.append(f"became {new.type_name}")
        # Times in some time zone, texts in some style: what the source's session made of them is not told.
        is_certain = is_certain and is_plain_cast(old.type_name, new.type_name)
        name, type_name = sql.Identifier(new.name), sql.SQL(new.type_name)
        retype = sql.SQL("ALTER COLUMN {} TYPE {}").format(name, type_name)
        if fit(old.type_name, new.type_name) is not Fit.EXACT:
            # The source may have had such a USING, which cuts what is too long, and casts what needs a USING.
            retype += sql.SQL(" USING {}::{}").format(name, type_name)
        statements.append(table + retype)
    elif is_retyped and fit(old.type_name, new.type_name) is not Fit.EXACT:
        # Nothing casts what a column of a type of its own has in older rows.
        what.append(f"became {new.type_name}")
        is_certain = False
    if not what:
        return None
    former = has.type_name if has is not None and has.type_name != new.type_name else None
    return Alteration(
        old.name, " and ".join(what), tuple(statements), is_certain, type_name=new.type_name, former_type=former
    )


def _addition(connection: Connection, relation: Relation, column: Column, *, is_emptied: bool) -> Alteration:
    """Rows older than the column get what they have at the source. Later ones bring their values."""
    table = altering(relation)
    name, type_name = sql.Identifier(column.name), sql.SQL(column.type_name)
    what = f"was added as {column.type_name}"
    if column.fill == "NULL":
        add = table + sql.SQL("ADD COLUMN {} {}").format(name, type_name)
        return Alteration(column.name, what, (add,), type_name=column.type_name)
    if column.fill is not None:
        fill = sql.SQL("ADD COLUMN {} {} DEFAULT {}::{}").format(name, type_name, sql.SQL(column.fill), type_name)
        forget = sql.SQL("ALTER COLUMN {} DROP DEFAULT").format(name)
        return Alteration(column.name, what, (table + fill, table + forget), type_name=column.type_name)
    return Alteration(
        column.name,
        what + UNTOLD,
        (table + sql.SQL("ADD COLUMN {} {}").format(name, type_name),),
        is_certain=is_emptied or not fills.has_rows(connection, relation),
        type_name=column.type_name,
    )
