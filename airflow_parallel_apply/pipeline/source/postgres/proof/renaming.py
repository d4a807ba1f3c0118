"""Tables that were renamed at the source, and the names that the target's tables get from a table's next row on.

The target's tables have the names that the log last had for them. A message of the slot shows one table's new name. If
another table still has that name in the log, it was renamed, too (a swap), and gets its present name along with the
first one. A table without a further row has no such message. `prepare` sends one of our own for it, in a transaction
that writes the publication's comment: only the publication's owner can do so, and nobody else's message counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg

from airflow_parallel_apply.pipeline.errors import SourceError
from airflow_parallel_apply.pipeline.log.protocol import LogState
from airflow_parallel_apply.pipeline.model.change import Relation, Renaming
from airflow_parallel_apply.pipeline.model.finding import command_line, listed
from airflow_parallel_apply.pipeline.source.postgres.catalog.catalog import SourceTable
from airflow_parallel_apply.pipeline.source.postgres.catalog.own_rows import Name, names_then
from airflow_parallel_apply.pipeline.source.postgres.ddl_capture import can_verify, ddl_objects
from airflow_parallel_apply.pipeline.source.postgres.pending import Pending
from airflow_parallel_apply.pipeline.source.postgres.proof.registration import RegisteredTable, Registration
from airflow_parallel_apply.pipeline.source.postgres.proof.truncations import descriptions
from airflow_parallel_apply.pipeline.source.postgres.session import statement
from airflow_parallel_apply.pipeline.source.protocol import Definitions

RENAMED_PREFIX: Final = "parallel_apply.renamed"
_COMMENTED_BY: Final = 2
"""The column of `publication.sql` that says which transaction wrote the comment."""


def tell_renamed(connection: psycopg.Connection[Any], oids: Iterable[int]) -> None:
    """Send the message, in the transaction of the connection, which is also to write the publication's comment."""
    content = " ".join(map(str, oids))
    connection.execute("SELECT pg_logical_emit_message(true, %s, %s)", [RENAMED_PREFIX, content])


def still_under(relations: Iterable[Relation], tables: Iterable[SourceTable], table: SourceTable) -> SourceTable | None:
    """The published table that had this table's name when the log last had it, and has another one now: the target's
    table of the name is that one's until the log tells the new name and the target has followed.
    """
    logged = {relation.oid: (relation.schema, relation.table) for relation in relations}
    name = table.schema, table.table
    for other in tables:
        if other.oid != table.oid and other.is_published and logged.get(other.oid) == name:
            return other
    return None


def still_to_come(
    pending: Pending, relations: Iterable[Relation], tables: Iterable[SourceTable]
) -> Mapping[Name, SourceTable]:
    """The published tables that the log does not know yet and of which the slot has changes under other names than they
    have now, by these names: such changes will be those of the target's tables of the names. Errors: psycopg's own.
    """
    logged = {relation.oid for relation in relations}
    unknown = {one.oid: one for one in tables if one.is_published and one.oid not in logged}
    if not unknown:
        return {}
    with suppress(psycopg.errors.InsufficientPrivilege):
        pending.bring_to_disk()
    sent = ((one.oid, (one.schema, one.table)) for _, one in descriptions(pending) if one.oid in unknown)
    return {name: unknown[oid] for oid, name in sent if name != (unknown[oid].schema, unknown[oid].table)}


def followed_once(log: LogState, tables: Iterable[SourceTable]) -> Iterator[SourceTable]:
    """Those of the tables that the log knows, and those that have the name of one which it knows and no longer follows:
    the target may have its rows.
    """
    logged = {relation.oid for relation in log.relations}
    registered = () if log.registration is None else Registration.from_text(log.registration).tables
    left = names_left(log.relations, registered)
    return (table for table in tables if table.oid in logged or (table.schema, table.table) in left)


def names_left(relations: Iterable[Relation], registered: Iterable[RegisteredTable]) -> set[Name]:
    """Names that the log last had for tables which are not registered any more: the target may have their rows."""
    logged = {relation.oid: (relation.schema, relation.table) for relation in relations}
    return {*logged.values()} - {logged[table.oid] for table in registered if table.oid in logged}


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """Definitions in the log under new names. `told`: those whose tables the target is told of there; `others`: of
    tables that took or gave names along with them.
    """

    told: tuple[Relation, ...] = ()
    others: tuple[Relation, ...] = ()


def renamed_by(
    connection: psycopg.Connection[Any], definitions: Definitions, publication: str, xid: int, content: bytes
) -> Renamed:
    """Return the definitions under new names that such a message brings; none where it is not ours, or late.

    Errors: psycopg's own.
    """
    found = connection.execute(statement("publication"), {"publication": publication}).fetchone()
    if found is None or found[_COMMENTED_BY] != xid:
        return Renamed()
    oids = [int(word) for word in content.split()]
    now = names_then(connection, oids)
    told: list[Relation] = []
    others: tuple[Relation, ...] = ()
    for oid in oids:
        known = definitions.latest_relation("", "", oid)
        if known is None or oid not in now or (known.schema, known.table) == now[oid]:
            continue
        schema, table = now[oid]
        relation, along = renamed(connection, definitions, replace(known, schema=schema, table=table, renaming=None))
        told.append(_logged(definitions, relation))
        others += along
    return Renamed(told=tuple(told), others=others)


def renamed(
    connection: psycopg.Connection[Any], definitions: Definitions, relation: Relation
) -> tuple[Relation, tuple[Relation, ...]]:
    """Return the definition with the renaming that it brings, and those of the other tables of which the log gets new
    names.

    Errors: `SourceError` where the name is one that another table gave up and has again: between the two nothing says
    what that one was called. psycopg's own.
    """
    name = relation.schema, relation.table
    known = definitions.latest_relation(*name, relation.oid)
    is_seen = known is not None and known.oid == relation.oid
    if known is not None and not is_seen:
        known = _under_name_of(connection, definitions, relation, known)
    if known is None or (known.schema, known.table) == name:
        return relation, ()
    pairs = [((known.schema, known.table), name)]
    by_name = {
        (other.schema, other.table): other for other in definitions.latest_relations() if other.oid != relation.oid
    }
    now = names_then(connection, [other.oid for other in by_name.values() if other.oid is not None])
    others: list[Relation] = []
    while (other := by_name.pop(pairs[-1][1], None)) is not None and other.oid is not None:
        taken = now.get(other.oid)
        if taken is None:
            # Dropped: the target's table in the way is a person's to judge.
            break
        if taken == pairs[-1][1]:
            raise _lent(connection, relation, taken)
        pairs.append((pairs[-1][1], taken))
        others.append(_logged(definitions, replace(other, schema=taken[0], table=taken[1], renaming=None)))
    # Who took over a name that was given up belongs to it: else nothing tells the two apart once it is done.
    takers = {
        now[other.oid]: other
        for other in by_name.values()
        if other.oid in now and now[other.oid] != (other.schema, other.table)
    }
    while (taker := takers.pop(pairs[0][0], None)) is not None:
        pairs.insert(0, ((taker.schema, taker.table), pairs[0][0]))
        taken = pairs[0][1]
        others.append(_logged(definitions, replace(taker, schema=taken[0], table=taken[1], renaming=None)))
    # With messages, the target may have been told already.
    is_certain = is_seen and not can_verify(ddl_objects(connection))
    return replace(relation, renaming=Renaming(pairs=tuple(pairs), is_certain=is_certain)), tuple(others)


def _under_name_of(
    connection: psycopg.Connection[Any], definitions: Definitions, relation: Relation, holder: Relation
) -> Relation | None:
    """The former definition of a table that the log sees first under a name that it has another table for, which is
    called otherwise by now: the definition under that name, in the log, as if the two had exchanged theirs. A person
    decides whether they did. None where the other table is gone, or is not known by its oid.
    """
    if holder.oid is None or relation.oid is None:
        return None
    taken = names_then(connection, [holder.oid]).get(holder.oid)
    if taken is None or taken == (relation.schema, relation.table):
        return None
    return _logged(definitions, replace(relation, schema=taken[0], table=taken[1], renaming=None))


def _lent(connection: psycopg.Connection[Any], relation: Relation, name: Name) -> SourceError:
    now = names_then(connection, [relation.oid] if relation.oid is not None else [])
    names = [".".join(one) for one in dict.fromkeys((name, *now.values()))]
    return SourceError(
        f"{relation.name} lent its name to another table while rows were written, and has it again: "
        f"{listed(names)} may have rows under each other's names",
        op="capture",
        table=relation.name,
        hint=f"Run `{command_line('recopy', names)}`: it copies them anew, and the next run goes on from there.",
    )


def _logged(definitions: Definitions, relation: Relation) -> Relation:
    """The same, in the log, with its id there."""
    return replace(relation, relation_id=definitions.relation_id(relation)[0])
