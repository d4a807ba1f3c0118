"""The target's tables as its catalog describes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.mariadb.quoting import quoted
from airflow_parallel_apply.pipeline.target.mariadb.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetColumn:
    """A column. `type`: the word alone, as `varchar`; `full_type`: as its definition has it, `varchar(40)`."""

    name: str
    type: str
    full_type: str
    charset: str | None
    collation: str | None
    precision: int | None
    scale: int | None
    fraction: int | None
    """Digits of a second."""
    is_nullable: bool
    has_default: bool
    is_generated: bool
    expression: str = ""
    """By which it is generated, in the server's words."""
    is_numbered: bool = False
    """AUTO_INCREMENT: NULL becomes a number."""
    is_touched: bool = False
    """ON UPDATE CURRENT_TIMESTAMP: an update that does not set it changes it."""

    @property
    def plain_type(self) -> str:
        """The type of a staging column: without default and constraints."""
        collated = f" CHARACTER SET {self.charset} COLLATE {self.collation}" if self.charset else ""
        return f"{self.full_type.replace('%', '%%')}{collated}"

    @property
    def is_unsigned(self) -> bool:
        return "unsigned" in self.full_type


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTable:
    """A table of the target, for one definition of the source's. `unique_keys`: the columns of each unique index; an
    index over beginnings of values, which may be equal where the values are not, has its columns' names and is one of
    `by_prefix`. `has_one_index`: whatever it is over.
    """

    relation: Relation
    database: str
    name: str
    engine: str
    columns: dict[str, TargetColumn]
    unique_keys: tuple[tuple[str, ...], ...]
    by_prefix: frozenset[tuple[str, ...]] = frozenset()
    by_hash: frozenset[tuple[str, ...]] = frozenset()
    """Those that are hashes, since no sorted index is that long: no row is found by one."""
    has_one_index: bool = False

    @property
    def quoted(self) -> str:
        """The name in statements."""
        return quoted(self.database, self.name)

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the columns by which the source tells rows apart."""
        return tuple(self.relation.columns[index].name for index in self.relation.key_indexes)

    @property
    def other_unique(self) -> frozenset[str]:
        """Columns of unique indexes that are not over the key: a row that another one's value takes is in its way."""
        key = set(self.key_names)
        return frozenset(name for columns in self.unique_keys if set(columns) != key for name in columns)

    @property
    def unsent(self) -> tuple[TargetColumn, ...]:
        """Columns that the source has, too, and computes, and does not send."""
        sent = {column.name.lower() for column in self.relation.columns}
        unsent = {name.lower() for name in self.relation.unsent_computed} - sent
        return tuple(column for column in self.columns.values() if column.name.lower() in unsent)

    @property
    def has_others(self) -> bool:
        """True if it has columns, with values of their own, that the source has not."""
        sent = {column.name for column in self.relation.columns}
        return any(not column.is_generated and column.name not in sent for column in self.columns.values())


def find_table(session: Session, relation: Relation) -> TargetTable | None:
    """The table that a definition's rows go into; None where there is none. Errors: the driver's own."""
    place = session.address.place(relation)
    engine = session.row(
        "SELECT ENGINE, TABLE_TYPE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s", place
    )
    if engine is None:
        return None
    unique: dict[str, list[str]] = {}
    indexes, by_prefix, by_hash = set(), set(), set()
    for index, is_unique, column, part, kind in session.rows(
        "SELECT INDEX_NAME, NON_UNIQUE = 0, COLUMN_NAME, SUB_PART, INDEX_TYPE FROM information_schema.STATISTICS"
        " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY INDEX_NAME, SEQ_IN_INDEX",
        place,
    ):
        indexes.add(index)
        if not is_unique:
            continue
        unique.setdefault(index, []).append(column)
        if part is not None:
            by_prefix.add(index)
        if kind == "HASH":
            by_hash.add(index)
    return TargetTable(
        relation=relation,
        database=place[0],
        name=place[1],
        engine=str(engine[0]) if engine[1] == "BASE TABLE" else str(engine[1]),
        columns={column.name: column for column in _columns(session, place)},
        unique_keys=tuple(tuple(columns) for columns in unique.values()),
        by_prefix=frozenset(tuple(unique[index]) for index in by_prefix),
        by_hash=frozenset(tuple(unique[index]) for index in by_hash),
        has_one_index=len(indexes) == 1,
    )


def _columns(session: Session, place: Sequence[str]) -> list[TargetColumn]:
    return [
        TargetColumn(
            name=name,
            type=word.lower(),
            full_type=full,
            charset=charset,
            collation=collation,
            precision=precision,
            scale=scale,
            fraction=fraction,
            is_nullable=nullable == "YES",
            has_default=default is not None or "AUTO_INCREMENT" in extra,
            is_generated="GENERATED" in extra or "PERSISTENT" in extra,
            expression=expression or "",
            is_numbered="AUTO_INCREMENT" in extra,
            is_touched="ON UPDATE" in extra,
        )
        for (
            name,
            word,
            full,
            charset,
            collation,
            precision,
            scale,
            fraction,
            nullable,
            default,
            expression,
            extra,
        ) in session.rows(
            "SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_SET_NAME, COLLATION_NAME, NUMERIC_PRECISION,"
            " NUMERIC_SCALE, DATETIME_PRECISION, IS_NULLABLE, COLUMN_DEFAULT, GENERATION_EXPRESSION, UPPER(EXTRA)"
            " FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION",
            place,
        )
    ]
