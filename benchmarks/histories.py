"""Histories that the source writes, to measure how fast others follow: each has tables, a start, and changes.

All of them write the same way each time: what is random comes from a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import psycopg

from airflow_parallel_apply.demo.history import create_tables, load_tables, run_transactions
from airflow_parallel_apply.demo.postgres import PostgresServer

TPCB_CHANGES: Final = 4
"""Changes of one transaction of pgbench's TPC-B: three updates and an insertion."""

_ITEMS: Final = "CREATE TABLE item (id bigint PRIMARY KEY, n bigint NOT NULL, note text NOT NULL)"
_FILL: Final = "INSERT INTO item SELECT g, 0, md5(g::text) FROM generate_series(1, {rows}) g"

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


def histories(changes: int) -> Mapping[str, History]:
    """By a short name, each of about so many changes; the large transaction has two million, whatever is asked."""
    rows = max(changes, 1000)
    few = changes // 10
    pick = f"(id = 1 + ((number * 10 + k)::bigint * 7919) % {rows})"
    return {
        "uniform": _of(
            f"updates of distinct keys, ten a transaction, {few:,} transactions",
            few * 10,
            rows,
            _LOOP.format(
                transactions=few,
                statement=f"UPDATE item SET n = n + 1, note = md5(note) FROM generate_series(0, 9) k WHERE {pick}",
            ),
        ),
        "insert": _of(
            f"insertions only, ten a transaction, {few:,} transactions",
            few * 10,
            0,
            _LOOP.format(
                transactions=few,
                statement="INSERT INTO item SELECT number * 10 + k, k, md5(k::text) FROM generate_series(0, 9) k",
            ),
        ),
        "hot10": _of(
            f"updates of ten hot rows, one a transaction, {changes:,} transactions",
            changes,
            10,
            _LOOP.format(
                transactions=changes,
                statement="UPDATE item SET n = n + 1, note = md5(note) WHERE id = 1 + (number * 7) % 10",
            ),
        ),
        "thousand": _of(
            f"1,000 rows a transaction, {changes // 1000:,} transactions",
            changes // 1000 * 1000,
            rows,
            _LOOP.format(
                transactions=changes // 1000,
                statement="UPDATE item SET n = n + 1, note = md5(note) "
                f"WHERE id > (number - 1) * 1000 % {rows} AND id <= (number - 1) * 1000 % {rows} + 1000",
            ),
        ),
        "large": _of(
            "one transaction of 2,000,000 changes",
            2_000_000,
            1_000_000,
            "BEGIN; UPDATE item SET n = n + 1; "
            "INSERT INTO item SELECT g, 1, md5(g::text) FROM generate_series(1000001, 2000000) g; COMMIT",
            native=", streaming = parallel",
        ),
    }


def _of(name: str, changes: int, rows: int, text: str, *, native: str = "") -> History:
    def prepare(server: PostgresServer, database: str) -> None:
        _run(server, database, _ITEMS, _FILL.format(rows=rows))

    def write(server: PostgresServer, database: str) -> None:
        _run(server, database, text)

    return History(name=name, changes=changes, prepare=prepare, write=write, native=native)


def _run(server: PostgresServer, database: str, *statements: str) -> None:
    with psycopg.connect(server.dsn(database), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def _tell_nobody(done: int) -> None:
    """A history takes seconds."""
    del done
