"""SQL, read from the `.sql` files of a room by file and name.

A file holds statements, each behind a line `-- name: what_it_does`; `{schema}` stands for the pipeline's schema,
other names in braces for what the caller puts there.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from psycopg import sql

_MARK: Final = "-- name: "


def statement(
    file: str, name: str, *, schema: str, package: str = __package__, **parts: sql.Composable
) -> sql.Composed:
    """The statement `name` of `<file>.sql` in a room (this one, unless told), for this schema."""
    return _load(package, file)[name].format(schema=sql.Identifier(schema), **parts)


@cache
def _load(package: str, file: str) -> dict[str, sql.SQL]:
    text = files(package).joinpath(f"{file}.sql").read_text(encoding="utf-8")
    found = {}
    for part in text.split(_MARK)[1:]:
        name, _, body = part.partition("\n")
        found[name.strip()] = sql.SQL(body.strip().removesuffix(";"))
    return found
