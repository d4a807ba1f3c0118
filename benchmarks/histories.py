"""Histories that the source writes, to measure how fast others follow: each has tables, a start, and changes.

All of them write the same way each time: what is random comes from a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import psycopg
import pyarrow as pa

from airflow_parallel_apply.demo.history import create_tables, load_tables, run_transactions
from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline.model.change import BUCKET_COUNT
from airflow_parallel_apply.pipeline.partition.key import buckets

TPCB_CHANGES: Final = 4
"""Changes of one transaction of pgbench's TPC-B: three updates and an insertion."""

_TPCB_SCALE: Final = 10

_LONG: Final = 10
"""So many times as long is a history that shows what is left beside a run's fixed costs."""

_TENANTS: Final = 1000
_OF_TRANSACTION: Final = 10

_ITEMS: Final = "CREATE TABLE item (id bigint PRIMARY KEY, n bigint NOT NULL, note text NOT NULL)"
_FILL: Final = "INSERT INTO item SELECT g, 0, md5(g::text) FROM generate_series(1, {rows}) g"

_PICKED: Final = "CREATE TABLE picked (place bigint PRIMARY KEY, id bigint NOT NULL)"
"""The keys of a history in its order. Nobody changes it."""

_LOOP: Final = """
DO $$
BEGIN
    PERFORM setseed(0.5);
    FOR number IN 1..{transactions} LOOP
        {statement};
        COMMIT;
    END LOOP;
END $$
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """`prepare` makes and fills both sides' tables; `write` makes the changes, at the source only.

    `native`: options of the peer's subscription that suit it best.
    """

    name: str
    changes: int
    prepare: Callable[[PostgresServer, str], None]
    write: Callable[[PostgresServer, str], None]
    native: str = ""


def tpcb(*, transactions: int, scale: int) -> History:
    """Pgbench's TPC-B."""

    def prepare(server: PostgresServer, database: str) -> None:
        create_tables(server, database)
        load_tables(server, database, scale=scale)

    def write(server: PostgresServer, database: str) -> None:
        run_transactions(server, database, transactions, on_progress=_tell_nobody)

    return History(
        name=f"pgbench TPC-B, scale {scale}, {transactions:,} transactions",
        changes=transactions * TPCB_CHANGES,
        prepare=prepare,
        write=write,
    )


def tenants(changes: int) -> History:
    """Updates of distinct keys, ten a transaction, each transaction of one of a thousand tenants."""
    transactions = changes // _OF_TRANSACTION
    most = -(-transactions // _TENANTS) * _OF_TRANSACTION

    def prepare(server: PostgresServer, database: str) -> None:
        _run(
            server,
            database,
            "CREATE TABLE entry (tenant bigint, id bigint, n bigint NOT NULL, note text NOT NULL,"
            " PRIMARY KEY (tenant, id))",
            "INSERT INTO entry SELECT tenant, id, 0, md5(id::text)"
            f" FROM generate_series(0, {_TENANTS - 1}) tenant, generate_series(0, {most - 1}) id",
        )

    def write(server: PostgresServer, database: str) -> None:
        statement = (
            f"UPDATE entry SET n = n + 1, note = md5(note) WHERE tenant = (number - 1) % {_TENANTS}"
            f" AND id BETWEEN (number - 1) / {_TENANTS} * {_OF_TRANSACTION}"
            f" AND (number - 1) / {_TENANTS} * {_OF_TRANSACTION} + {_OF_TRANSACTION - 1}"
        )
        _run(server, database, _LOOP.format(transactions=transactions, statement=statement))

    return History(
        name=f"updates of distinct keys, {_OF_TRANSACTION} a transaction and of one of {_TENANTS:,} tenants, "
        f"{transactions:,} transactions",
        changes=transactions * _OF_TRANSACTION,
        prepare=prepare,
        write=write,
    )


def histories(changes: int) -> Mapping[str, History]:
    """By a short name, each of about so many changes, TPC-B of twice and eight times as many, the other long ones of
    ten times as many; the large transaction has two million, whatever is asked.
    """
    rows = max(changes, 1000)
    few = changes // 10
    pick = f"(id = 1 + ((number * 10 + k)::bigint * 7919) % {rows})"
    return {
        "tpcb": tpcb(transactions=changes // 2, scale=_TPCB_SCALE),
        "tpcb_long": tpcb(transactions=changes * 2, scale=_TPCB_SCALE),
        "uniform": _of(
            f"updates of distinct keys, ten a transaction, {few:,} transactions",
            few * 10,
            rows,
            _LOOP.format(
                transactions=few,
                statement=f"UPDATE item SET n = n + 1, note = md5(note) FROM generate_series(0, 9) k WHERE {pick}",
            ),
        ),
        "one_channel": _in_one_channel(few),
        "insert": _insertions(few),
        "insert_long": _insertions(few * _LONG),
        "hot10": _of(
            f"updates of ten hot rows, one a transaction, {changes:,} transactions",
            changes,
            10,
            _LOOP.format(
                transactions=changes,
                statement="UPDATE item SET n = n + 1, note = md5(note) WHERE id = 1 + (number * 7) % 10",
            ),
        ),
        "thousand": _thousands(rows // 1000),
        "thousand_long": _thousands(rows // 1000 * _LONG),
        "large": _of(
            "one transaction of 2,000,000 changes",
            2_000_000,
            1_000_000,
            "BEGIN; UPDATE item SET n = n + 1; "
            "INSERT INTO item SELECT g, 1, md5(g::text) FROM generate_series(1000001, 2000000) g; COMMIT",
            native=", streaming = parallel",
        ),
    }


def _insertions(transactions: int) -> History:
    """Ten each."""
    statement = "INSERT INTO item SELECT number * 10 + k, k, md5(k::text) FROM generate_series(0, 9) k"
    return _of(
        f"insertions only, ten a transaction, {transactions:,} transactions",
        transactions * 10,
        0,
        _LOOP.format(transactions=transactions, statement=statement),
    )


def _thousands(transactions: int) -> History:
    """Updates of 1,000 neighbours each; of each key one."""
    statement = "UPDATE item SET n = n + 1, note = md5(note) WHERE id > (number - 1) * 1000 AND id <= number * 1000"
    return _of(
        f"updates of distinct keys, 1,000 a transaction, {transactions:,} transactions",
        transactions * 1000,
        transactions * 1000,
        _LOOP.format(transactions=transactions, statement=statement),
    )


def _of(name: str, changes: int, rows: int, text: str, *, native: str = "") -> History:
    def prepare(server: PostgresServer, database: str) -> None:
        _run(server, database, _ITEMS, _FILL.format(rows=rows))

    def write(server: PostgresServer, database: str) -> None:
        _run(server, database, text)

    return History(name=name, changes=changes, prepare=prepare, write=write, native=native)


def _in_one_channel(transactions: int) -> History:
    """As `uniform`, but all keys lie in the first quarter of the buckets: in one channel of two, or of four."""
    few = transactions * 10

    def prepare(server: PostgresServer, database: str) -> None:
        ids = np.arange(1, few * 5 + 1)
        found = ids[buckets("public.item", pa.array(ids).cast(pa.string())) * 4 < BUCKET_COUNT][:few]
        _run(server, database, _ITEMS, _PICKED)
        with psycopg.connect(server.dsn(database), autocommit=True) as connection:
            with connection.cursor().copy("COPY picked FROM STDIN") as copy:
                for place, one in enumerate(np.random.default_rng(1).permutation(found).tolist()):
                    copy.write_row((place, one))
            connection.execute("INSERT INTO item SELECT id, 0, md5(id::text) FROM picked ORDER BY id")
            connection.execute("ANALYZE")

    def write(server: PostgresServer, database: str) -> None:
        statement = (
            "UPDATE item SET n = n + 1, note = md5(note) FROM picked"
            " WHERE item.id = picked.id AND place BETWEEN (number - 1) * 10 AND number * 10 - 1"
        )
        _run(server, database, _LOOP.format(transactions=transactions, statement=statement))

    return History(
        name=f"updates of distinct keys of one channel, ten a transaction, {transactions:,} transactions",
        changes=few,
        prepare=prepare,
        write=write,
    )


def _run(server: PostgresServer, database: str, *statements: str) -> None:
    with psycopg.connect(server.dsn(database), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def _tell_nobody(done: int) -> None:
    """A history takes seconds."""
    del done
