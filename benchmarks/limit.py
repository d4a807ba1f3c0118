"""The limit: how fast one session of the target takes the net rows, when they are ready as COPY text.

No log, no reading, no merge: into empty tables with the same columns and keys, in one transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from airflow_parallel_apply.pipeline.apply.net_changes import NetChanges
from airflow_parallel_apply.pipeline.apply.reduce import Reducer
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.change import Relation
from benchmarks.world import Database, World


@dataclass(frozen=True, slots=True, kw_only=True)
class NetTable:
    """A table's net rows as COPY text, without the operations: all of them are inserted here."""

    relation: Relation
    row_count: int
    text: bytes


def net_tables(world: World) -> tuple[NetTable, ...]:
    """The net rows of the whole history."""
    log = open_reader(world.log.log_url)
    state = log.state()
    rows = pa.Table.from_batches(log.rows(-1, state.last_seqno)).combine_chunks()
    order = ["relation_id", "key_order", "key", "seqno", "fragno"]
    rows = rows.sort_by([(name, "ascending") for name in order])
    found = []
    for relation_id in pc.unique(rows.column("relation_id")).to_pylist():
        relation = state.relation(relation_id)
        of_table = rows.filter(pc.equal(rows.column("relation_id"), relation_id)).combine_chunks()
        found.append(_net_table(relation, of_table))
    return tuple(found)


def measure_copy(database: Database, tables: tuple[NetTable, ...]) -> float:
    """Seconds of one transaction."""
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA copied")
        for table in tables:
            name = table.relation.table
            connection.execute(
                sql.SQL("CREATE TABLE copied.{name} (LIKE {schema}.{name} INCLUDING ALL)").format(
                    name=sql.Identifier(name), schema=sql.Identifier(table.relation.schema)
                )
            )
        began = monotonic()
        with connection.transaction():
            for table in tables:
                columns = sql.SQL(", ").join(sql.Identifier(column.name) for column in table.relation.columns)
                command = sql.SQL("COPY copied.{} ({}) FROM STDIN").format(
                    sql.Identifier(table.relation.table), columns
                )
                with connection.cursor().copy(command) as copy:
                    copy.write(table.text)
        return monotonic() - began


def _net_table(relation: Relation, rows: pa.Table) -> NetTable:
    reducer = Reducer(relation)
    changes = [net for batch in rows.to_batches() for net in reducer.feed(batch)]
    changes += reducer.finish()
    return NetTable(
        relation=relation,
        row_count=sum(len(net.operations) for net in changes),
        text=b"".join(_values_text(net) for net in changes),
    )


def _values_text(changes: NetChanges) -> bytes:
    return "".join(f"{line}\n" for line in changes.values.to_pylist()).encode()
