"""The columns of the target's tables as its catalog describes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import psycopg

from airflow_parallel_apply.pipeline.target.postgres.statements import statement

_FIRST_MADE: Final = 12000
"""The lowest oid of a type that is not one of PostgreSQL's own. Those below are in pg_catalog, and none is a domain."""

_KEPT_COLUMNS: Final = 4096

WITHOUT_LETTERS: Final = "SQL_ASCII"
"""The encoding of a database that knows no letters, and counts bytes."""

_ONE_IMAGE_TYPES: Final = frozenset((16, 17, 18, 20, 21, 23, 25, 26, 1043, 1082, 1114, 1184, 2950))
"""bool, bytea, "char", the integers, text, oid, varchar, date, the timestamps, uuid: equal keys have equal text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetColumn:
    """One column. `declared_sql` is the type as DDL writes it; `type_sql` of a domain the type below it.
    `plain_type_sql`: without a modifier, for casts: an explicit cast to `varchar(3)` cuts what an assignment to such a
    column refuses.
    """

    name: str
    type_sql: str
    plain_type_sql: str
    declared_sql: str
    generated: bool
    virtual: bool
    """It is generated, and not stored."""
    identity_always: bool
    needs_value: bool
    has_default: bool
    fuzzy: bool
    """Its collation is nondeterministic."""
    one_image: bool
    """Values that are equal have the same text."""
    compound: bool
    """How its values are read depends on types that its own name does not tell."""
    unsteady: bool
    """A text that it prints may be read as a value that prints another one: see `_is_unsteady`."""


class ColumnRow(NamedTuple):
    """The part of a row of the statement `describe` that is about the column alone."""

    name: str
    type_oid: int
    type_sql: str
    plain_type_sql: str
    generated: bool
    identity_always: bool
    not_null: bool
    has_default: bool
    fuzzy: bool
    virtual: bool


class MadeType(NamedTuple):
    """A type that is not one of PostgreSQL's own, or a domain with the type below it. The prefixes are schemas that
    the server leaves out: `declared_prefix` that of the type, `prefix` that of what is below.
    """

    declared_prefix: str
    prefix: str
    compound: bool
    base_oid: int | None
    base_sql: str | None
    plain_base_sql: str | None


_OWN: Final = MadeType("", "", compound=False, base_oid=None, base_sql=None, plain_base_sql=None)


def made_types(connection: psycopg.Connection[Any], rows: Iterable[ColumnRow]) -> dict[int, MadeType]:
    """The types of columns that are not PostgreSQL's own, by oid. Errors: psycopg's own."""
    oids = sorted({row.type_oid for row in rows if row.type_oid >= _FIRST_MADE})
    if not oids:
        return {}
    found = connection.execute(statement("tables", "types"), {"oids": oids}).fetchall()
    return {oid: MadeType(*facts) for oid, *facts in found}


@lru_cache(maxsize=_KEPT_COLUMNS)
def column_of(row: ColumnRow, made: MadeType | None, *, counts_bytes: bool = False) -> TargetColumn:
    """The column that a row tells of. Thousands of tables have few different ones. `counts_bytes`: the database's
    encoding knows no letters.
    """
    type_ = made or _OWN
    type_oid = type_.base_oid or row.type_oid
    type_sql = type_.prefix + (type_.base_sql or row.type_sql)
    return TargetColumn(
        name=row.name,
        type_sql=type_sql,
        plain_type_sql=type_.prefix + (type_.plain_base_sql or row.plain_type_sql),
        declared_sql=type_.declared_prefix + row.type_sql,
        generated=row.generated,
        virtual=row.virtual,
        identity_always=row.identity_always,
        needs_value=row.not_null and not row.has_default and not row.generated,
        has_default=row.has_default,
        fuzzy=row.fuzzy,
        one_image=type_oid in _ONE_IMAGE_TYPES and not row.fuzzy,
        compound=type_.compound,
        unsteady=_is_unsteady(type_sql, counts_bytes=counts_bytes),
    )


def _is_unsteady(type_sql: str, *, counts_bytes: bool) -> bool:
    """True of XML, which leaves out an empty first line each time it is printed; and of texts with a length where that
    is one in bytes, so that they are cut and padded otherwise than the source's.
    """
    has_length = type_sql.startswith("character") and "(" in type_sql
    return type_sql.removesuffix("[]") == "xml" or (counts_bytes and has_length)
