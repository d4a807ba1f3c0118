"""Tables that have to share a channel, because the target's role cannot switch off the checks of their foreign keys."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.target.postgres.naming import SCHEMA
from airflow_parallel_apply.pipeline.target.postgres.replica_role import may_be_replica
from airflow_parallel_apply.pipeline.target.postgres.session import Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement


def find_colocation(session: Session, tables: TablePatterns) -> tuple[tuple[str, ...], ...]:
    """See `Target.colocation`: the connected components of the foreign keys between these tables, a table that refers
    to itself included. A partition belongs to its table's, since the log may name either.
    """
    with session.errors("read foreign keys"):
        connection = session.connection()
        if may_be_replica(connection):
            return ()
        links = connection.execute(statement("tables", "links"), {"schema": SCHEMA}).fetchall()
    group: dict[str, set[str]] = {}
    colocated: set[str] = set()
    for schema, table, other_schema, other, is_key in links:
        if not (tables.matches(schema, table) and tables.matches(other_schema, other)):
            continue
        names = f"{schema}.{table}", f"{other_schema}.{other}"
        joined = {one for name in names for one in group.get(name, {name})}
        group.update(dict.fromkeys(joined, joined))
        if is_key:
            colocated.add(names[0])
    return tuple(sorted({tuple(sorted(group[name])) for name in colocated}))
