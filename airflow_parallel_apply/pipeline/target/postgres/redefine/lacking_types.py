"""Types that the source names and the target lacks: whether one does, and what to do then."""

from __future__ import annotations

import psycopg

from airflow_parallel_apply.pipeline.target.postgres.session import Connection
from airflow_parallel_apply.postgres.quoting import quoted


def lacks_type(connection: Connection, type_name: str | None) -> bool:
    """True if the target lacks the type, or the role may not use the type's schema."""
    if type_name is None:
        return False
    try:
        with connection.transaction():
            found = connection.execute("SELECT to_regtype(%s) IS NULL", [type_name]).fetchone()
    except psycopg.Error:
        return True
    return found is None or bool(found[0])


def lacking_hint(connection: Connection, type_name: str, former: str | None) -> str:
    """Tell how the target gets it. `former`: the type that the column has there."""
    making = "`parallel-apply check` prints the command that makes it; run that first."
    renaming = None if former is None else _renaming(connection, former, type_name)
    if renaming is None:
        return f"The target lacks the type {type_name}: {making}"
    return (
        f"The target lacks the type {type_name}. If that is what the source calls {former} by now (ALTER TYPE), run "
        f"{renaming} at the target, then run again: no more is needed. If it is another type, {making}"
    )


def _renaming(connection: Connection, former: str, type_name: str) -> str | None:
    """The statements that give a type of users' another one's name; None where either is none of theirs."""
    old, new = (_name(connection, name) for name in (former, type_name))
    if old is None or new is None or former.endswith("[]") != type_name.endswith("[]"):
        return None
    move = f"CREATE SCHEMA IF NOT EXISTS {quoted(new[0])}; ALTER TYPE {quoted(*old)} SET SCHEMA {quoted(new[0])}"
    rename = f"ALTER TYPE {quoted(new[0], old[1])} RENAME TO {quoted(new[1])}"
    return "; ".join([*([move] if old[0] != new[0] else ()), *([rename] if old[1] != new[1] else ())])


def _name(connection: Connection, type_name: str) -> tuple[str, str] | None:
    """Schema and name of a type, or of an array's elements."""
    try:
        with connection.transaction():
            found = connection.execute("SELECT parse_ident(%s)", [type_name.removesuffix("[]")]).fetchone()
    except psycopg.Error:
        return None
    words = [] if found is None else found[0]
    return (words[0], words[1]) if len(words) == 2 else None
