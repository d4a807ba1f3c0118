"""The initial copy between two real servers: what arrives, what is refused, what it says meanwhile."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from rich.console import Console

from airflow_parallel_apply.cli.status_view import status_view
from airflow_parallel_apply.demo.postgres import PostgresServer
from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.admin.status import read_status
from airflow_parallel_apply.pipeline.admin.watch import lease_view
from airflow_parallel_apply.pipeline.config import PipelineConfig
from airflow_parallel_apply.pipeline.copy.postgres import load, parts
from airflow_parallel_apply.pipeline.copy.protocol import Copying, CopyOrder
from airflow_parallel_apply.pipeline.errors import (
    ConfigurationError,
    LeaseBusy,
    OwnershipLost,
    TargetError,
    Unavailable,
)
from airflow_parallel_apply.pipeline.model.copy_progress import CopyProgress
from tests.support.clusters import CopiedServer
from tests.support.copying import AWKWARD, FILLED, copying_rig, left_at_source, require_equal
from tests.support.local_copier import LocalCopier
from tests.support.rig import Rig, execute
from tests.support.variants import gated


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    return copying_rig(source_dsn, target_dsn, tmp_path, monkeypatch)


def test_every_row_arrives_and_the_stream_goes_on_where_the_copy_ends(rig: Rig) -> None:
    rig.both(*AWKWARD)
    rig.write(*FILLED)
    created = rig.prepare().created
    assert any("Copied 3,503 rows of 5 tables" in line for line in created), created
    require_equal(rig)
    rig.write("DELETE FROM shop.orders WHERE id % 3 = 0", "UPDATE shop.texts SET f = 1", *FILLED[:1])
    rig.run()
    require_equal(rig)


@gated
def test_missing_tables_are_made_with_all_that_belongs_to_them(rig: Rig) -> None:
    execute(
        rig.source_dsn,
        *AWKWARD,
        "ALTER TABLE shop.texts ADD CONSTRAINT not_five CHECK (f <> 5)",
        "CREATE INDEX by_total ON shop.orders (total) WHERE total > 5",
        "CREATE INDEX by_v ON shop.measured (v)",
        "CREATE FUNCTION shop.own() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        "CREATE TABLE shop.lines (order_id bigint REFERENCES shop.orders, n integer DEFAULT 7, own integer DEFAULT "
        "shop.own(), PRIMARY KEY (order_id, n))",
        "SET search_path = shop; CREATE DOMAIN stage AS state DEFAULT 'new'::state; RESET search_path",
        "CREATE DOMAIN shop.called AS integer DEFAULT shop.own()",
        "ALTER TABLE shop.nothing ADD stage shop.stage, ADD called shop.called",
        *FILLED,
        "ALTER DOMAIN shop.amount ADD CONSTRAINT low CHECK (value < 1000) NOT VALID",
        "INSERT INTO shop.lines SELECT id FROM shop.orders",
    )
    rig = rig.having(create_tables=True, channels=1)
    created = rig.prepare().created
    assert any("Made 6 tables" in line for line in created), created
    assert any("shop.lines.own" in line for line in created), created
    require_equal(rig)
    assert definitions(rig, "source") == definitions(rig, "target")
    execute(rig.target_dsn, "INSERT INTO shop.texts (t) VALUES ('next')", "DELETE FROM shop.texts WHERE t = 'next'")
    rig.write(
        "INSERT INTO shop.lines SELECT id, 8 FROM shop.orders", "INSERT INTO shop.measured VALUES ('2030-01-01', 1)"
    )
    rig.run()
    require_equal(rig)


def definitions(rig: Rig, side: str) -> list[Any]:
    """Constraints, indexes and column definitions, but for the default that cannot be taken along."""
    return [
        rig.rows(query, side=side)
        for query in (
            "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint "
            "WHERE connamespace = 'shop'::regnamespace AND contype <> 'n' AND convalidated ORDER BY 1, 2",
            "SELECT schemaname, tablename, indexname, indexdef FROM pg_indexes "
            "WHERE schemaname IN ('shop', 'Odd name') ORDER BY 1, 2, 3",
            "SELECT attrelid::regclass::text, attname, format_type(atttypid, atttypmod), attnotnull, attidentity, "
            "attgenerated, pg_get_expr(adbin, adrelid) FROM pg_attribute JOIN pg_class c ON c.oid = attrelid "
            "LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum WHERE relnamespace = 'shop'::regnamespace "
            "AND relkind IN ('r', 'p') AND attnum > 0 AND attname <> 'own' ORDER BY attrelid::regclass::text, attnum",
            "SELECT schemaname, sequencename, last_value FROM pg_sequences WHERE schemaname = 'shop' ORDER BY 1, 2",
        )
    ]


@gated
def test_a_source_that_is_written_to_meanwhile_ends_equal(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, v text)")
    rig.write("INSERT INTO t SELECT i, repeat('x', 50) FROM generate_series(1, 20000) i")
    written = threading.Event()

    class Watched(LocalCopier):
        def copy(self, order: CopyOrder, parts: Sequence[int]) -> None:
            assert written.wait(120), "the source took no write while the copy had begun"
            super().copy(order, parts)

    rig = replace(rig, copier=lambda rig: Watched(source=rig.source, target=rig.target))
    with being_written(rig, written):
        rig.prepare()
    assert rig.run().rows > 0
    require_equal(rig)


def test_rows_of_somebody_else_at_the_target_are_refused_by_name_before_anything_is_made(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)", "CREATE TABLE u (id integer PRIMARY KEY)")
    rig.write("INSERT INTO t VALUES (1)")
    execute(rig.target_dsn, "INSERT INTO u VALUES (1)")
    with pytest.raises(TargetError, match=r"public\.u has rows"):
        rig.prepare()
    assert rig.rows("SELECT to_regnamespace('parallel_apply')") == [(None,)]
    assert left_at_source(rig) == ([], [])
    assert rig.rows("SELECT count(*) FROM t") == [(0,)]


def test_missing_tables_are_named_where_they_are_not_to_be_made(rig: Rig) -> None:
    execute(rig.source_dsn, "CREATE TABLE t (id integer PRIMARY KEY)")
    with pytest.raises(TargetError, match=r"public\.t is missing"):
        rig.prepare()


def test_what_cannot_be_made_is_told_before_a_slot_is_there(rig: Rig) -> None:
    execute(
        rig.source_dsn,
        "CREATE FUNCTION odd(integer) RETURNS boolean IMMUTABLE LANGUAGE sql AS 'SELECT $1 % 2 = 1'",
        "CREATE TABLE t (id integer PRIMARY KEY, CHECK (odd(id)))",
    )
    with pytest.raises(ConfigurationError, match=r"function public\.odd\(integer\) does not exist .* Make there what"):
        rig.having(create_tables=True).prepare()
    assert left_at_source(rig) == ([], [])
    assert rig.rows("SELECT to_regclass('t')") == [(None,)]


def test_a_name_that_something_else_has_at_the_target_is_told(rig: Rig) -> None:
    execute(rig.source_dsn, "CREATE TABLE t (id integer PRIMARY KEY)")
    execute(rig.target_dsn, "CREATE TABLE former (id integer CONSTRAINT t_pkey PRIMARY KEY)")
    with pytest.raises(ConfigurationError, match=r'relation "t_pkey" already exists .* Drop what has that name'):
        rig.having(create_tables=True).prepare()


@gated
def test_a_part_that_runs_twice_is_there_once(rig: Rig) -> None:
    rig.both("CREATE TABLE t (v text)")
    rig.write("INSERT INTO t SELECT repeat('x', 50) FROM generate_series(1, 20000) i")

    class Twice(LocalCopier):
        def copy(self, order: CopyOrder, parts: Sequence[int]) -> None:
            with ThreadPoolExecutor() as pool:
                for done in [pool.submit(self._part, order, part) for part in (*parts, *parts)]:
                    with suppress(Unavailable):
                        # A twin ends the session of the one that came before it.
                        done.result()

    replace(rig, copier=lambda rig: Twice(source=rig.source, target=rig.target)).prepare()
    assert rig.rows("SELECT count(*) FROM t") == [(20000,)]


@gated
def test_a_part_of_a_copy_that_is_over_changes_nothing(rig: Rig) -> None:
    rig.both("CREATE TABLE t (v text)")
    rig.write("INSERT INTO t SELECT repeat('x', 50) FROM generate_series(1, 20000) i")
    orders: list[CopyOrder] = []

    class Sleeping(LocalCopier):
        """Its first part stands still between its rows and its mark, while another copy is made."""

        def copy(self, order: CopyOrder, parts: Sequence[int]) -> None:
            orders.append(order)
            if len(orders) == 1:
                raise OwnershipLost("cut", op="copy")
            with pytest.raises(OwnershipLost):
                load.load_part(self.source, self.target, replace(order, copy_id=orders[0].copy_id), 0)
            super().copy(order, parts)

    rig = replace(rig, copier=lambda rig: Sleeping(source=rig.source, target=rig.target))
    with pytest.raises(OwnershipLost, match="cut"):
        rig.prepare()
    rig.prepare()
    assert rig.rows("SELECT count(*) FROM t") == [(20000,)]


@gated
def test_two_copies_of_one_pipeline_do_not_meet(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)")
    rig.write("INSERT INTO t VALUES (1)")

    class Meeting(LocalCopier):
        def copy(self, order: CopyOrder, parts: Sequence[int]) -> None:
            with pytest.raises(LeaseBusy, match="is copying"):
                rig.prepare()
            seen.append(lease_view("p", rig.target).owner)
            super().copy(order, parts)

    seen: list[str | None] = []
    assert lease_view("p", rig.target).owner is None
    replace(rig, copier=lambda rig: Meeting(source=rig.source, target=rig.target)).prepare()
    require_equal(rig)
    assert "copies the source's rows" in (seen[0] or "")
    assert lease_view("p", rig.target).owner is None


@gated
def test_a_restart_of_the_source_cuts_the_copy_off_and_the_next_one_is_whole(
    target_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 2**16)
    with TemporaryDirectory(prefix="parallel-apply-source-") as directory, CopiedServer(Path(directory) / "d") as own:
        config = PipelineConfig(pipeline="p", log_url=str(tmp_path / "log"))
        rig = Rig(config=config, source_dsn=own.create_database("s"), target_dsn=target_dsn)
        rig.both("CREATE TABLE t (id integer PRIMARY KEY, v text)")
        rig.write("INSERT INTO t SELECT i, repeat('x', 50) FROM generate_series(1, 20000) i")

        class Restarting(LocalCopier):
            def copy(self, order: CopyOrder, parts: Sequence[int]) -> None:
                super().copy(order, parts[:2])
                own.kill()
                own.start()
                super().copy(order, parts[2:])

        with pytest.raises(Unavailable, match="cut off"):
            replace(rig, copier=lambda rig: Restarting(source=rig.source, target=rig.target)).prepare()
        rig.write("UPDATE t SET v = 'y' WHERE id % 2 = 0")
        rig.run()
        require_equal(rig)


@gated
def test_progress_and_status_tell_how_far_a_copy_is(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, v text)")
    rig.write("INSERT INTO t SELECT i, repeat('x', 50) FROM generate_series(1, 20000) i")
    seen: list[CopyProgress] = []

    class Half(LocalCopier):
        def copy(self, order: CopyOrder, parts: Sequence[int]) -> None:
            super().copy(order, parts[: len(parts) // 2])
            status = read_status(rig.target, "p")
            assert status.phase == "copying"
            assert status.copy is not None
            assert 0.3 < status.copy.fraction < 0.7
            assert status.copy.seconds_left is not None
            console = Console(file=StringIO(), width=200)
            console.print(status_view(status, {}))
            assert "left" in console.file.getvalue()  # type: ignore[attr-defined]
            super().copy(order, parts[len(parts) // 2 :])

    copying = Copying(copier=Half(source=rig.source, target=rig.target), report=seen.append, cancelled=lambda: False)
    run.prepare(rig.config, rig.source, rig.target, copying=copying)
    assert (seen[-1].rows, seen[-1].fraction) == (20000, 1.0)
    assert json.dumps(read_status(rig.target, "p").to_json())


@gated
def test_a_cancelled_copy_ends_and_begins_anew_later(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, v text)")
    rig.write("INSERT INTO t SELECT i, repeat('x', 50) FROM generate_series(1, 20000) i")

    class Slow(LocalCopier):
        def copy(self, order: CopyOrder, parts: Sequence[int]) -> None:
            super().copy(order, parts[:1])
            assert self.cancelled.wait(120), "the cancellation does not arrive"
            super().copy(order, parts[1:])

    copying = Copying(
        copier=Slow(source=rig.source, target=rig.target), report=lambda progress: None, cancelled=lambda: True
    )
    with pytest.raises(OwnershipLost, match="cancelled"):
        run.prepare(rig.config, rig.source, rig.target, copying=copying)
    assert left_at_source(rig)[0] == []
    rig.run()
    require_equal(rig)


def test_without_the_right_to_be_a_replica_foreign_keys_are_refused_by_name(
    rig: Rig, target_server: PostgresServer, target_database: str
) -> None:
    rig.both("CREATE TABLE p (id integer PRIMARY KEY)", "CREATE TABLE c (id integer PRIMARY KEY REFERENCES p)")
    execute(
        rig.target_dsn,
        f"CREATE ROLE plain_{target_database} LOGIN",
        f"GRANT CREATE ON DATABASE {target_database} TO plain_{target_database}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON p, c TO plain_{target_database}",
    )
    plain = make_conninfo(rig.target_dsn, user=f"plain_{target_database}")
    with pytest.raises(ConfigurationError, match="c_id_fkey"):
        replace(rig, target_dsn=plain).having(channels=1).prepare()


@contextmanager
def being_written(rig: Rig, written: threading.Event) -> Iterator[None]:
    """Insertions, updates, deletions and changes of keys, until the block ends."""
    ended = threading.Event()

    def write() -> None:
        with psycopg.connect(rig.source_dsn, autocommit=True) as connection:
            number = 0
            while not ended.is_set():
                number += 1
                connection.execute("INSERT INTO t VALUES (%s, 'new')", [100_000 + number])
                connection.execute("UPDATE t SET v = v || 'y' WHERE id %% 997 = %s", [number % 997])
                connection.execute("DELETE FROM t WHERE id = %s", [number * 7])
                connection.execute("UPDATE t SET id = -id WHERE id = %s", [number * 11])
                if number == 10:
                    written.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()
