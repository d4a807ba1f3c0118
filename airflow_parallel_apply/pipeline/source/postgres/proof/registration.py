"""The registration: what the followed tables were when capture last looked at them, as the log keeps it.

A slot does not send the rows that an ATTACH brings, or that a DETACH, a DROP or the TRUNCATE of one partition removes;
and it sends nothing about a table that is not in the publication. So each capture compares the catalog with the
registration. Two facts make equality a proof that nothing was done and undone in between: a row of the catalog that was
dropped and made again has another oid, and one that was updated has another `xmin`.

Values that an ALTER TABLE changes are not sent either: see `rewrites.py`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from typing import Any, Final

from airflow_parallel_apply.pipeline.log.protocol import ResumePoint

PARTITIONED = "p"
"""The `relkind` of a table that stands for its partitions."""
_KEPT_TEXTS: Final = 2
_FEW_TABLES: Final = 50
_HORIZON_STEP: Final = 100_000
"""Transaction ids by which the horizon of more tables may lag before the log keeps all of them again."""
_XIDS: Final = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The rows that a partition has, as a condition that no others of the whole table meet, and the columns that it
    names: their numbers there, names and types. Empty: a target may read that otherwise.
    """

    rows: str = ""
    keys: tuple[tuple[int, str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition at any depth. `link`: the `xmin` of its entry in `pg_inherits`. `filenode`: of its rows' file, which
    a TRUNCATE replaces; 0 of one that is partitioned itself. `watched`: its entry, by its oid and the publication's
    `xmin`, in the publication that tells when partitions are truncated: as long as it is there, the server refuses to
    make the partition unlogged. `bounds`: None where they are not known.
    """

    oid: int
    parent: int
    schema: str
    table: str
    kind: str
    link: int
    filenode: int
    watched: int | None = None
    is_unlogged: bool = False
    bounds: Bounds | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """`schema.table`, for people."""
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedPart:
    """A partition that the stream tells to be gone. `root`: the table that it was in. `lsn`: what wrote to it committed
    below.
    """

    oid: int
    root: int
    lsn: int
    bounds: Bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredTable:
    """A followed table.

    `membership`: the oid of its entry in the publication; None where it has none. `publication`: the `xmin` of the
    publication under which its rows are known to have been sent. `touched`: changes whenever its name does. `watched`:
    its entry in the publication that tells when partitions are truncated (see `truncations.py`). `filenode`: of its own
    rows' file; 0 of a partitioned one. `versions`: of its columns' entries in the catalog, their `xmin`, by number from
    1 on; 0 of one that is dropped or generated; none in a log of an older version. `labels`: of the enums that its
    columns' values may have: the oids of their entries in the catalog, and the versions of these, as above.
    `attributes`: the numbers of those that the composite types of its columns' values have, and behind a slash how many
    there ever were, by the oids of these types' entries. `links`: what it inherits from and what that inherits from, as
    child, parent and the `xmin` of the entry in `pg_inherits`; None in a log of an older version. `is_entering`: its
    entry in the publication is still to be seen: the run that makes it may die before.
    """

    oid: int
    schema: str
    table: str
    kind: str
    is_partition: bool
    membership: int | None
    publication: int
    touched: str
    watched: int | None = None
    partitions: tuple[Partition, ...] = ()
    filenode: int = 0
    versions: tuple[int, ...] = ()
    labels: tuple[tuple[int, str, int], ...] = ()
    attributes: tuple[tuple[int, str], ...] = ()
    links: tuple[tuple[int, int, int], ...] | None = None
    is_entering: bool = False

    @property
    def name(self) -> str:
        """`schema.table`, for people."""
        return f"{self.schema}.{self.table}"

    @property
    def files(self) -> dict[int, int]:
        """Those of all its rows, by the oids of the tables that they are of."""
        own = {self.oid: self.filenode} if self.filenode else {}
        return own | {part.oid: part.filenode for part in self.partitions if part.filenode}


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """`server`: the system identifier, since oids and transaction ids of another server mean something else.

    `horizon`: below this transaction id everything was over when the catalog was read, or before; 0 where none is
    known, None in a log of an older version, which knows no types either. `ahead`: that of the moment itself, which
    counts as far as the log has come, see `_over_by`; None where it is not kept.

    `since`: tables that were taken in after the first run, by oid, with the LSN from which on their commits count: what
    the slot sends of them below was published by somebody else. `left`: tables that were followed, by oid, with the LSN
    up to which their commits count. `skipped`: tables, by oid, with the LSN below which older rows got values that only
    a person knows of. `removed`: partitions that the stream tells to be gone.
    """

    server: str
    tables: tuple[RegisteredTable, ...]
    horizon: int | None = None
    ahead: int | None = None
    since: tuple[tuple[int, int], ...] = ()
    left: tuple[tuple[int, int], ...] = ()
    skipped: tuple[tuple[int, int], ...] = ()
    removed: tuple[RemovedPart, ...] = ()

    @property
    def oids(self) -> frozenset[int]:
        """Those of the tables that send rows as their own."""
        return frozenset(table.oid for table in self.tables)

    @property
    def part_oids(self) -> frozenset[int]:
        """Those of the partitions, whose rows are sent as those of the tables that they are in."""
        return frozenset(part.oid for table in self.tables for part in table.partitions) - self.oids

    def entering(self, tables: Iterable[RegisteredTable], lsn: int, *, captured_lsn: int) -> Registration:
        """With tables that are about to be published, as they are then; their commits count from an LSN on. What was
        captured is not sent again, whichever table it was of.
        """
        given = {table.oid: replace(table, is_entering=True) for table in tables}
        known = {table.oid: table for table in self.tables}
        since = {oid: first for oid, first in self.since if first > captured_lsn}
        return replace(
            self,
            tables=tuple(sorted((known | given).values(), key=lambda table: table.oid)),
            since=tuple(sorted((since | dict.fromkeys(given, lsn)).items())),
        )

    def leaving(self, oids: Iterable[int], lsn: int, resume: ResumePoint | None) -> Registration:
        """With these tables' commits up to an LSN. What the log's last transaction covers is not sent again."""
        kept = {oid: end for oid, end in self.left if resume is None or end > resume.offset}
        return replace(self, left=tuple(sorted((kept | dict.fromkeys(oids, lsn)).items())))

    def skipping(self, oids: Iterable[int], lsn: int, resume: ResumePoint | None) -> Registration:
        """With what a person answers for of these tables, up to an LSN."""
        kept = {oid: end for oid, end in self.skipped if resume is None or end > resume.offset}
        return replace(self, skipped=tuple(sorted((kept | dict.fromkeys(oids, lsn)).items())))

    def removing(self, parts: Iterable[RemovedPart], resume: ResumePoint | None) -> Registration:
        """With these partitions, which are told to be gone."""
        given = {part.oid: part for part in parts}
        kept = {part.oid: part for part in self.removed if resume is None or part.lsn > resume.offset}
        return replace(self, removed=tuple(part for _, part in sorted((kept | given).items())))

    def seen_from(self, resume: ResumePoint | None) -> Registration:
        """With the horizon that the log's last transaction proves. What is read after it without a look at the catalog
        proves no more: the source may have gone back meanwhile.
        """
        if self.horizon is None or self.ahead is None:
            return self
        return replace(self, horizon=max(self.horizon, _over_by(self.ahead, resume)), ahead=None)

    def looked_at(
        self, tables: tuple[RegisteredTable, ...], horizon: int, resume: ResumePoint | None, *, has_new_types: bool
    ) -> Registration:
        """With the present tables, and with what is over now. An older horizon is just as valid, and saves the log a
        large registration, unless there are types above it that a followed table may come to use.
        """
        known = self.horizon or 0
        if len(tables) <= _FEW_TABLES or has_new_types:
            return replace(self, tables=tables, horizon=known, ahead=horizon)
        now = _over_by(horizon, resume)
        is_near = tables == self.tables and now - known < _HORIZON_STEP
        return replace(self, tables=tables, horizon=known if is_near else max(known, now), ahead=None)

    def having(self, *tables: RegisteredTable, instead_of: Collection[int] = ()) -> Registration:
        """With these tables as given, instead of what was registered of them, of other tables with their names, or of
        these oids: the former entries no longer count. Their copies determine from where on the tables count.
        """
        given, names = {table.oid for table in tables}, {table.name for table in tables}
        replaced = {*given, *instead_of}
        kept = (table for table in self.tables if table.oid not in replaced and table.name not in names)
        return replace(
            self,
            tables=tuple(sorted((*kept, *tables), key=lambda table: table.oid)),
            since=tuple(one for one in self.since if one[0] not in given),
            left=tuple(one for one in self.left if one[0] not in instead_of),
        )

    def to_text(self) -> str:
        """The form that the log keeps; equal registrations have equal texts."""
        return json.dumps(
            {
                "server": self.server,
                "tables": [_table_to_json(table) for table in self.tables],
                "horizon": self.horizon,
                "ahead": self.ahead,
                **({"since": self.since} if self.since else {}),
                **({"left": self.left} if self.left else {}),
                **({"skipped": self.skipped} if self.skipped else {}),
                **({"removed": [_removed_to_json(one) for one in self.removed]} if self.removed else {}),
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_text(cls, text: str) -> Registration:
        """Inverse of `to_text`."""
        return _registration(text)


def _over_by(horizon: int, resume: ResumePoint | None) -> int:
    """The horizon as far as it holds whatever a source has lost behind the log's last transaction, and gives the ids of
    which to others: what had its id before that transaction keeps it, and was over, or ended when the source went back.
    """
    if resume is None or resume.xid is None:
        return 0
    # The log has the lower half of the id.
    last = horizon + (resume.xid - horizon + _XIDS // 2) % _XIDS - _XIDS // 2
    return min(horizon, last + 1)


@lru_cache(maxsize=_KEPT_TEXTS)
def _registration(text: str) -> Registration:
    """Each step of a run reads the same text; that of thousands of tables takes a tenth of a second."""
    value = json.loads(text)
    horizon, ahead = value.get("horizon"), value.get("ahead")
    if horizon is not None and "ahead" not in value:
        # An older version took that of the moment for proven.
        horizon, ahead = 0, horizon
    return Registration(
        server=value["server"],
        tables=tuple(_table_from_json(table) for table in value["tables"]),
        horizon=horizon,
        ahead=ahead,
        since=tuple((oid, lsn) for oid, lsn in value.get("since", ())),
        left=tuple((oid, lsn) for oid, lsn in value.get("left", ())),
        skipped=tuple((oid, lsn) for oid, lsn in value.get("skipped", ())),
        removed=tuple(
            RemovedPart(oid=oid, root=root, lsn=lsn, bounds=_bounds_from_json(*bounds))
            for oid, root, lsn, *bounds in value.get("removed", ())
        ),
    )


def _table_to_json(table: RegisteredTable) -> list[Any]:
    return [
        table.oid,
        table.schema,
        table.table,
        table.kind,
        table.is_partition,
        table.membership,
        table.publication,
        table.touched,
        table.watched,
        [
            [
                *(part.oid, part.parent, part.schema, part.table, part.kind, part.link, part.filenode, part.watched),
                *([] if part.bounds is None else [part.bounds.rows, part.bounds.keys]),
            ]
            for part in table.partitions
        ],
        table.filenode,
        [[version, len([*group])] for version, group in groupby(table.versions)],
        table.labels,
        table.attributes,
        table.links,
        *([True] if table.is_entering else []),
    ]


def _removed_to_json(part: RemovedPart) -> list[Any]:
    return [part.oid, part.root, part.lsn, part.bounds.rows, part.bounds.keys]


def _bounds_from_json(rows: str, keys: list[Any]) -> Bounds:
    return Bounds(rows=rows, keys=tuple((number, name, type_name) for number, name, type_name in keys))


def _table_from_json(value: list[Any]) -> RegisteredTable:
    oid, schema, table, kind, is_partition, membership, publication, touched, watched, partitions, *more = value
    # An older version wrote fewer of them.
    filenode = more[0] if more else 0
    versions, labels, attributes = [*more[1:4], [], [], []][:3]
    links = more[4] if len(more) > 4 else None
    is_entering = len(more) > 5
    return RegisteredTable(
        oid=oid,
        schema=schema,
        table=table,
        kind=kind,
        is_partition=is_partition,
        membership=membership,
        publication=publication,
        touched=touched,
        watched=watched,
        partitions=tuple(
            Partition(
                oid=oid,
                parent=parent,
                schema=schema,
                table=table,
                kind=kind,
                link=link,
                filenode=filenode,
                watched=more[0] if more else None,
                bounds=_bounds_from_json(*more[1:]) if len(more) > 1 else None,
            )
            for oid, parent, schema, table, kind, link, filenode, *more in partitions
        ),
        filenode=filenode,
        versions=tuple(version for version, count in versions for _ in range(count)),
        labels=tuple((oid, label, version[0] if version else 0) for oid, label, *version in labels),
        attributes=tuple((oid, numbers) for oid, numbers in attributes),
        links=None if links is None else tuple((child, parent, link) for child, parent, link in links),
        is_entering=is_entering,
    )
