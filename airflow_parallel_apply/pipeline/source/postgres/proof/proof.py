"""Proves that everything that happened to the followed tables is in the slot's stream (`prove`), or says why not.

A proven table is registered anew, so that the next capture compares with it. Any other table stays registered as it
was, and is reported again until it is fixed: a table that is copied anew is registered as it then is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from airflow_parallel_apply.pipeline.config import DdlPolicy, PipelineConfig
from airflow_parallel_apply.pipeline.errors import SourceError
from airflow_parallel_apply.pipeline.log.protocol import LogState
from airflow_parallel_apply.pipeline.model.finding import Finding, Side, command_line, listed, new_finding
from airflow_parallel_apply.pipeline.source.postgres.ddl.removals import told_removals
from airflow_parallel_apply.pipeline.source.postgres.lsn import inserted_lsn
from airflow_parallel_apply.pipeline.source.postgres.pending import Pending
from airflow_parallel_apply.pipeline.source.postgres.proof.alteration_doubts import alteration_doubts
from airflow_parallel_apply.pipeline.source.postgres.proof.bounds import with_bounds
from airflow_parallel_apply.pipeline.source.postgres.proof.doubt import Doubt
from airflow_parallel_apply.pipeline.source.postgres.proof.marks import has_new_types
from airflow_parallel_apply.pipeline.source.postgres.proof.observed import Observed, ObservedTable, observe_now
from airflow_parallel_apply.pipeline.source.postgres.proof.partition_doubts import partition_doubts, told_gone
from airflow_parallel_apply.pipeline.source.postgres.proof.registration import (
    Bounds,
    RegisteredTable,
    Registration,
    RemovedPart,
)
from airflow_parallel_apply.pipeline.source.postgres.proof.renaming import names_left
from airflow_parallel_apply.pipeline.source.postgres.session import Session
from airflow_parallel_apply.postgres.quoting import quoted

_SHOWN_TABLES: Final = 5
_COMPARABLE_XIDS: Final = 2**31 - 1
_BOOTSTRAP_XID: Final = 1
"""No table's entry in the catalog has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The outcome: what is known now, and what is in doubt. `observed`: the tables that were compared, by oid, as they
    are now, whether proven or not.
    """

    registration: Registration
    doubts: tuple[Doubt, ...]
    observed: Mapping[int, RegisteredTable]

    def findings(self, config: PipelineConfig) -> tuple[Finding, ...]:
        """For `check`."""
        return tuple(
            replace(
                new_finding(
                    Side.SOURCE,
                    doubt.table,
                    doubt.what,
                    note=_remedy([one for one in self.doubts if one.table == doubt.table], config),
                ),
                is_table=True,
            )
            for doubt in self.doubts
        )

    def require(self, config: PipelineConfig, op: str) -> Registration:
        """The registration. Errors: `SourceError` that names every doubt, or as many as fit."""
        if not self.doubts:
            return self.registration
        raise SourceError(
            listed([doubt.what for doubt in self.doubts]),
            op=op,
            pipeline=config.pipeline,
            table=self.doubts[0].table,
            hint=_remedy(self.doubts, config),
        )


def prove(
    session: Session, slot: str, publication: str, config: PipelineConfig, registration: Registration, *, log: LogState
) -> Proof:
    """Compare the catalog with what is registered. Errors: psycopg's own."""
    now = observe_now(session, publication, registration.tables)
    connection = session.catalog()
    if now.publication is None:
        what, note = f"publication {publication} is gone", "Run again: the next run says what to do."
        doubts = [Doubt(table=publication, what=what, note=note)]
        return Proof(registration=registration, doubts=tuple(doubts), observed={})
    registration = registration.seen_from(log.resume)
    if now.server != registration.server:
        tables = tuple(_upgraded(table, now.tables.get(table.oid)) for table in registration.tables)
        registration = replace(registration, server=now.server, tables=tables)
    entering = {table.oid: table for table in registration.tables if _is_entering(table, now)}
    known = {table.oid: table for table in registration.tables if table.oid not in entering}
    horizon = _horizon(registration, now)
    proven: dict[int, RegisteredTable] = {}
    doubts = [*_publication_doubts(publication, now, known)]
    unsure = {doubt.table for doubt in doubts}
    once = names_left(log.relations, registration.tables)
    changed: list[tuple[RegisteredTable, RegisteredTable]] = []
    left: list[int] = []
    for table in known.values():
        found = now.tables.get(table.oid)
        if _is_left(table, found, now, config):
            left.append(table.oid)
            continue
        if found is not None and table.oid in now.attached:
            # Its rows are sent as those of the table above, of which there are doubts enough.
            proven[table.oid] = found.registered
            continue
        proven[table.oid] = table
        if table.name in unsure:
            continue
        doubt = _table_doubt(publication, table, found, now, known)
        if doubt is None and found is not None:
            doubt = _name_doubt(table, found.registered, once)
            if doubt is not None and not _is_followed(found, config):
                # It stays as it was registered: a copy would be made of what the patterns leave out.
                continue
        if doubt is not None:
            doubts.append(doubt)
        elif found is not None:
            proven[table.oid] = found.registered
            is_unlogged = any(part.is_unlogged for part in found.registered.partitions)
            if is_unlogged or _files(table) != _files(found.registered):
                changed.append((table, found.registered))
    pending = Pending(connection, slot, publication)
    gone = told_removals(pending) if any(_lost(*pair) for pair in changed) else {}
    for table_doubt, table in partition_doubts(pending, changed, gone, horizon=horizon):
        doubts.append(table_doubt)
        proven[table.oid] = table
    removed = [(part, after.oid) for before, after in changed for part in told_gone(before, after, gone)]
    pairs = [(known[oid], table) for oid, table in proven.items() if table != known[oid] and oid not in now.attached]
    skipped: list[int] = []
    for table_doubt, table in alteration_doubts(pending, pairs, known, log=log, horizon=horizon):
        if config.ddl is DdlPolicy.SKIP:
            skipped.append(table.oid)
        else:
            doubts.append(table_doubt)
            proven[table.oid] = table
    for oid, found in now.tables.items():
        if oid not in known and found.registered.membership is not None:
            doubts.append(_addition_doubt(publication, found))
        elif oid in entering and _is_followed(found, config):
            proven[oid] = replace(found.registered, membership=entering[oid].membership, is_entering=True)
    asked = (with_bounds(connection, table, known.get(oid)) for oid, table in proven.items())
    tables = tuple(sorted(asked, key=lambda table: table.oid))
    has_new = has_new_types(connection, registration.horizon or 0, now.horizon)
    registration = registration.looked_at(tables, now.horizon, log.resume, has_new_types=has_new)
    if left:
        registration = registration.leaving(left, inserted_lsn(connection), log.resume)
    if removed:
        lsn = inserted_lsn(connection)
        parts = [RemovedPart(oid=one.oid, root=root, lsn=lsn, bounds=one.bounds or Bounds()) for one, root in removed]
        registration = registration.removing(parts, log.resume)
    if skipped:
        registration = registration.skipping(skipped, inserted_lsn(connection), log.resume)
    observed = {oid: found.registered for oid, found in now.tables.items()}
    return Proof(registration=registration, doubts=tuple(doubts), observed=observed)


def is_as_registered(session: Session, publication: str, registration: Registration) -> bool:
    """True if there is nothing to prove, to report or to register anew. Errors: psycopg's own."""
    now = observe_now(session, publication, registration.tables)
    known = {table.oid: table for table in registration.tables}
    gone = {table.name for table in known.values() if table.oid not in now.tables}
    return now.server == registration.server and all(
        table.registered == known.get(oid)
        for oid, table in now.tables.items()
        if oid in known or table.registered.membership is not None or table.registered.name in gone
    )


def _horizon(registration: Registration, now: Observed) -> int | None:
    """That of the registration, or of as long ago as the server's comparison of transaction ids reaches."""
    then = registration.horizon
    return None if then is None else max(then, now.horizon - _COMPARABLE_XIDS)


def _publication_doubts(publication: str, now: Observed, known: Mapping[int, RegisteredTable]) -> Iterator[Doubt]:
    """Doubt every table that was registered under another state of the publication, unless we altered that
    ourselves, or it is gone.
    """
    is_ours = now.ours == now.publication
    schemas = ", ".join(quoted(schema) for schema in now.schemas)
    # A table is published anew by a copy, a schema is not withdrawn by it.
    first = f"Run ALTER PUBLICATION {quoted(publication)} DROP TABLES IN SCHEMA {schemas} at the source, then go on: "
    for table in known.values():
        if table.oid in now.attached:
            continue
        if now.wrong:
            what = f"publication {publication} {' and '.join(now.wrong)}: {table.name}"
            yield Doubt(table=table.name, what=what, first=first if schemas else "")
        elif not is_ours and table.oid in now.tables and table.publication != now.publication:
            what = f"publication {publication} was altered, so changes of {table.name} may be missing"
            yield Doubt(table=table.name, what=what)


def _table_doubt(
    publication: str,
    table: RegisteredTable,
    found: ObservedTable | None,
    now: Observed,
    known: Mapping[int, RegisteredTable],
) -> Doubt | None:
    if found is None:
        namesake = now.by_name.get(table.name)
        if namesake is None or namesake.registered.is_partition:
            # A partition's rows are those of the table that it is in.
            return None
        former = known.get(namesake.registered.oid)
        if former is None or former.name == table.name:
            return Doubt(table=table.name, what=f"{table.name} was dropped and created again")
        # The target's table has the rows of the one that is gone, and a renaming would find it in the way.
        return Doubt(table=table.name, what=f"{table.name} was dropped, and {former.name} has its name now")
    name = found.registered.name
    if found.registered.membership is None:
        return Doubt(table=name, what=f"{name} was dropped from the publication")
    if found.has_filter or found.has_list:
        kind = "row filter" if found.has_filter else "column list"
        return Doubt(table=name, what=f"{name} has a {kind} in the publication")
    if found.registered.membership != table.membership and table.is_entering:
        return _addition_doubt(publication, found)
    if found.registered.membership != table.membership:
        return Doubt(table=name, what=f"{name} was dropped from the publication and added again")
    root = _root(table, known)
    if root is not None and not found.registered.is_partition:
        return Doubt(table=name, what=f"{name} was a partition of {root.name}, and its rows were sent as that table's")
    return None


def _root(table: RegisteredTable, known: Mapping[int, RegisteredTable]) -> RegisteredTable | None:
    """The followed table that a table was registered as a partition of."""
    if not table.is_partition:
        return None
    return next((one for one in known.values() if any(part.oid == table.oid for part in one.partitions)), None)


def _is_entering(table: RegisteredTable, now: Observed) -> bool:
    """True of a table that is still to be published, by another run just now, or by one that died before."""
    found = now.tables.get(table.oid)
    return table.is_entering and (found is None or found.registered.membership is None)


def _name_doubt(table: RegisteredTable, now: RegisteredTable, once: Collection[tuple[str, str]]) -> Doubt | None:
    """Doubt a table that took the name of one which nobody follows any more, and whose rows the target may have."""
    if now.name == table.name or (now.schema, now.table) not in once:
        return None
    return Doubt(
        table=now.name,
        what=f"{table.name} has taken the name {now.name}, under which this pipeline followed another table once",
    )


def _addition_doubt(publication: str, found: ObservedTable) -> Doubt:
    """Doubt a table that somebody else has published, since what was sent of it is not known."""
    name = found.registered.name
    return Doubt(
        table=name,
        what=f"{name} was added to publication {publication} by somebody else",
        note=f"Run ALTER PUBLICATION {quoted(publication)} DROP TABLE ONLY "
        f"{quoted(found.registered.schema, found.registered.table)}; the next run follows the table, if it matches.",
    )


def _lost(before: RegisteredTable, after: RegisteredTable) -> bool:
    return bool({part.oid for part in before.partitions} - {part.oid for part in after.partitions})


def _files(table: RegisteredTable) -> frozenset[tuple[int, int, int, int]]:
    return frozenset((part.oid, part.parent, part.link, part.filenode) for part in table.partitions)


def _upgraded(table: RegisteredTable, found: ObservedTable | None) -> RegisteredTable:
    """The table at the server that took the place of the registered one: pg_upgrade keeps oids, files and rows, and
    creates the catalog's entries anew. So if files differ, any column may have been altered.
    """
    if found is None:
        return table
    now = found.registered
    links = {(part.oid, part.parent): part.link for part in now.partitions}
    parents = {(child, parent): link for child, parent, link in now.links or ()}
    versions = {oid: version for oid, _, version in now.labels}
    return replace(
        table,
        membership=now.membership,
        publication=now.publication,
        touched=now.touched if table.name == now.name else table.touched,
        partitions=tuple(
            replace(part, link=links.get((part.oid, part.parent), part.link)) for part in table.partitions
        ),
        versions=(_BOOTSTRAP_XID,) * len(now.versions),
        labels=tuple((oid, label, versions.get(oid, version)) for oid, label, version in table.labels),
        links=None
        if table.links is None
        else tuple((child, parent, parents.get((child, parent), link)) for child, parent, link in table.links),
    )


def _is_left(table: RegisteredTable, found: ObservedTable | None, now: Observed, config: PipelineConfig) -> bool:
    """True of a table that nothing publishes any more and that the patterns leave out. A table that is gone is left
    once another one has its name; whoever follows that one has to copy it.
    """
    if found is None:
        return table.name in now.by_name and not config.tables.matches(table.schema, table.table)
    return found.registered.membership is None and not _is_followed(found, config)


def _is_followed(found: ObservedTable, config: PipelineConfig) -> bool:
    return config.tables.matches(found.registered.schema, found.registered.table)


def recopy_hint(names: Sequence[str], config: PipelineConfig) -> str:
    """The hint that makes sure of tables again."""
    return (
        f"Run `{command_line('recopy', names[:_SHOWN_TABLES], config.pipeline)}`"
        + (f" with a --table for each of the {len(names)} tables" if len(names) > _SHOWN_TABLES else "")
        + ": it publishes and copies what may be missing anew."
    )


def _remedy(doubts: Sequence[Doubt], config: PipelineConfig) -> str:
    names = [*dict.fromkeys(doubt.table for doubt in doubts if not doubt.note)]
    words = [doubt.note for doubt in doubts if doubt.note][:_SHOWN_TABLES]
    more = dict.fromkeys(doubt.more for doubt in doubts if doubt.more)
    first = "".join(dict.fromkeys(doubt.first for doubt in doubts if doubt.first))
    return " ".join([*words, first + recopy_hint(names, config), *_vouching(doubts, config), *more] if names else words)


def _vouching(doubts: Sequence[Doubt], config: PipelineConfig) -> Iterator[str]:
    """The commands with which a person who knows the statements can avoid the copy. To vouch for a table is to vouch
    for everything that was done to it, so each command has all conditions of its tables.
    """
    of_tables: dict[str, tuple[str, ...]] = {}
    for doubt in doubts:
        of_tables[doubt.table] = (*of_tables.get(doubt.table, ()), doubt.unless)
    named: dict[tuple[str, ...], list[str]] = {}
    for table, found in of_tables.items():
        if all(found):
            named.setdefault(tuple(dict.fromkeys(found)), []).append(table)
    for conditions, names in named.items():
        command = command_line("vouch", names[:_SHOWN_TABLES], config.pipeline)
        more = f" with a --table for each of the {len(names)} tables" if len(names) > _SHOWN_TABLES else ""
        yield f"Only where {', and '.join(conditions)}: `{command}`{more} instead of that copy."
