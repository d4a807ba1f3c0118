"""The unique indexes and exclusion constraints of the target's tables as its catalog describes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.postgres.arrays import numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueIndex:
    """A unique index or exclusion constraint. `usable`: valid, over plain columns, without a condition. `immediate`:
    not deferrable. `columns`: None for an expression. `operators`: the equality of each, None where its type has none.
    `referenced`: columns that its expressions and its condition read.
    """

    name: str
    usable: bool
    exclusion: bool
    immediate: bool
    columns: tuple[str | None, ...]
    operators: tuple[str | None, ...]
    referenced: tuple[str, ...]


def unique_indexes(
    connection: psycopg.Connection[Any], oids: Sequence[int], *, partitioned: Sequence[int]
) -> dict[int, tuple[UniqueIndex, ...]]:
    """Those of tables, by oid; a primary key comes first. `partitioned`: the tables among them that have parts, whose
    own indexes count, too. Errors: psycopg's own.
    """

    def ask(name: str, **values: Sequence[int]) -> list[tuple[Any, ...]]:
        return connection.execute(statement("tables", name), {k: numbers(v) for k, v in values.items()}).fetchall()

    held = [(oid, oid) for oid in oids] + (ask("parts", oids=partitioned) if partitioned else [])
    rows = ask("unique_indexes", roots=[root for root, _ in held], oids=[oid for _, oid in held])
    reading = [oid for _, oid, *_, reads, _, _ in rows if reads]
    read: dict[int, list[str]] = {}
    for oid, column in ask("index_reads", oids=reading) if reading else ():
        read.setdefault(oid, []).append(column)
    opclasses = sorted({opclass for *_, found in rows for opclass in found})
    equal = dict(ask("equalities", oids=opclasses)) if opclasses else {}
    found: dict[int, list[UniqueIndex]] = {}
    for root, oid, name, exclusion, immediate, usable, _, columns, classes in rows:
        found.setdefault(root, []).append(
            UniqueIndex(
                name=name,
                usable=usable,
                exclusion=exclusion,
                immediate=immediate,
                columns=tuple(columns),
                operators=tuple(equal.get(opclass) for opclass in classes),
                referenced=tuple(read.get(oid, ())),
            )
        )
    return {root: tuple(indexes) for root, indexes in found.items()}
