"""Long arrays as parameters of statements, which cast them: `unnest(%(tables)s::text[])`.

psycopg looks at each element of a list for its type. Of thousands of tables that takes longer than their rows do.
"""

from __future__ import annotations

from collections.abc import Iterable


def numbers(values: Iterable[int]) -> str:
    """An array of whole numbers."""
    return f"{{{','.join(map(str, values))}}}"


def texts(values: Iterable[str]) -> str:
    """An array of texts, whatever is in them. No text of a PostgreSQL server has a zero byte, which parts them here."""
    found = [*values]
    escaped = "\0".join(found).replace("\\", "\\\\").replace('"', '\\"')
    return '{"' + escaped.replace("\0", '","') + '"}' if found else "{}"


def named(names: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Tables by schema and name, as the parameters `schemas` and `tables`."""
    found = [*names]
    return {"schemas": texts(schema for schema, _ in found), "tables": texts(table for _, table in found)}
