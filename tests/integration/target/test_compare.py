"""Comparisons of two real databases."""

from __future__ import annotations

import psycopg
import pytest
from typer.testing import CliRunner

from airflow_parallel_apply.cli import app
from airflow_parallel_apply.cli.compare_view import UnderWay
from airflow_parallel_apply.pipeline.compare import Comparison, TableComparison, compare
from airflow_parallel_apply.pipeline.compare.postgres.side import _LOOKING
from airflow_parallel_apply.pipeline.config import Endpoint, TablePatterns
from airflow_parallel_apply.pipeline.errors import ConfigurationError, Unavailable
from tests.support.variants import gated


@pytest.fixture
def sides(source_dsn: str, target_dsn: str) -> tuple[Endpoint, Endpoint]:
    return Endpoint(conn_id="source", url=source_dsn), Endpoint(conn_id="target", url=target_dsn)


def run(side: Endpoint, text: str) -> None:
    with psycopg.connect(side.url, autocommit=True) as connection:
        connection.execute(text)


def compared(sides: tuple[Endpoint, Endpoint], include: str = "public.*") -> Comparison:
    return compare(*sides, TablePatterns(include=(include,)), jobs=2)


def test_equal_tables_are_equal_whatever_the_order_of_rows_and_columns(sides: tuple[Endpoint, Endpoint]) -> None:
    source, target = sides
    run(
        source, 'CREATE TABLE "T 1" (a int PRIMARY KEY, "B" text, c float8, d timestamptz, e char(4), f bytea, g int[])'
    )
    run(
        target,
        """CREATE TABLE "T 1" (extra int DEFAULT 1, g bigint[], "B" varchar, a bigint PRIMARY KEY, d timestamptz,
           e char(4), f bytea, c float8)""",
    )
    database = psycopg.conninfo.conninfo_to_dict(target.url)["dbname"]
    run(target, f"ALTER DATABASE {database} SET TimeZone = 'Asia/Tokyo'")
    rows = "SELECT n, NULLIF('x,' || n, 'x,7'), n / 3.0, 'epoch', 'a', '\\x00ff', ARRAY[n, NULL]"
    rows += " FROM generate_series(1, 50) n"
    run(source, f'INSERT INTO "T 1" {rows}')
    run(target, f'INSERT INTO "T 1" (a, "B", c, d, e, f, g) {rows} ORDER BY n DESC')
    comparison = compared(sides)
    assert comparison.equal, comparison
    (table,) = comparison.tables
    assert (table.name, table.source_rows, table.target_rows) == ("public.T 1", 50, 50)
    assert table.source_checksum == table.target_checksum


def test_the_first_differing_keys_are_told(sides: tuple[Endpoint, Endpoint]) -> None:
    for side in sides:
        run(side, "CREATE TABLE t (a int, b text, v text, PRIMARY KEY (a, b))")
        run(side, "INSERT INTO t SELECT n, 'k', 'v' FROM generate_series(1, 3000) n")
    run(sides[1], "UPDATE t SET v = NULL WHERE a = 17")
    run(sides[1], "DELETE FROM t WHERE a = 18")
    run(sides[1], "INSERT INTO t VALUES (9999, 'new', '')")
    comparison = compared(sides)
    assert not comparison.equal
    assert {str(found) for found in comparison.tables[0].differences} == {
        "(17,k) has other values in the target",
        "(18,k) is missing in the target",
        "(9999,new) is in the target only",
    }


def test_tables_without_a_key_are_compared_as_multisets(sides: tuple[Endpoint, Endpoint]) -> None:
    for side in sides:
        run(side, "CREATE TABLE h (a int, b text)")
        run(side, "INSERT INTO h VALUES (1, 'x'), (1, 'x'), (2, NULL)")
    assert compared(sides).equal
    run(sides[1], "INSERT INTO h VALUES (1, 'x')")
    (table,) = compared(sides).tables
    assert [str(found) for found in table.differences] == ["(1,x): 2 rows in the source, 3 in the target"]


def test_null_and_empty_text_differ(sides: tuple[Endpoint, Endpoint]) -> None:
    for side, value in zip(sides, ("''", "NULL"), strict=True):
        run(side, f"CREATE TABLE t (a int PRIMARY KEY, v text); INSERT INTO t VALUES (1, {value})")
    assert not compared(sides).equal


def test_a_table_that_the_target_lacks_is_a_problem_of_that_table_only(sides: tuple[Endpoint, Endpoint]) -> None:
    run(sides[0], "CREATE TABLE gone (a int); CREATE TABLE kept (a int)")
    run(sides[1], "CREATE TABLE kept (a int)")
    lines: list[str] = []
    under_way = UnderWay(lines.append)
    comparison = compare(*sides, TablePatterns(), jobs=1, begun=under_way.begun, progress=under_way.compared)
    assert lines == [
        "compared 0 of 2 tables, now public.gone",
        "compared 1 of 2 tables",
        "compared 1 of 2 tables, now public.kept",
        "compared 2 of 2 tables",
    ]
    gone, kept = comparison.tables
    assert kept.equal
    assert not gone.equal
    assert gone.problem == 'target: relation "public.gone" does not exist'
    assert gone.source_rows == 0


@gated
@pytest.mark.parametrize(
    ("ends", "told"), [("ROLLBACK", "session "), ("PREPARE TRANSACTION 'left'", "transaction left")]
)
def test_a_table_that_somebody_keeps_locked_is_told_with_who_does(
    sides: tuple[Endpoint, Endpoint], ends: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_LOOKING, "lock_timeout", "200ms")
    for end in sides:
        run(end, "CREATE TABLE t (id int PRIMARY KEY)")
    with psycopg.connect(sides[0].url, autocommit=True) as connection:
        connection.execute("BEGIN")
        connection.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        if ends != "ROLLBACK":
            connection.execute(ends)
        try:
            (table,) = compared(sides).tables
        finally:
            connection.execute("ROLLBACK" if ends == "ROLLBACK" else "ROLLBACK PREPARED 'left'")
    assert "source: it is locked by" in str(table.problem)
    assert told in str(table.problem)
    assert compared(sides).equal


def test_only_followed_tables_are_compared(sides: tuple[Endpoint, Endpoint]) -> None:
    run(sides[0], "CREATE TABLE one (a int); CREATE TABLE two (a int)")
    run(sides[1], "CREATE TABLE two (a int)")
    assert [table.name for table in compared(sides, "public.two").tables] == ["public.two"]


@gated
def test_a_comparison_of_no_table_is_no_proof_of_anything(sides: tuple[Endpoint, Endpoint]) -> None:
    for side in sides:
        run(side, "CREATE TABLE orders (a int)")
    assert not compared(sides, "public.ordres").equal
    ends = ["--source", sides[0].url, "--target", sides[1].url]
    for more in ([], ["--json"]):
        told = CliRunner().invoke(app, ["compare", *ends, *more, "--include", "public.ordres", "--exclude", "x.*"])
        assert told.exit_code == 1
        assert f"no table of the source {sides[0].place} matches public.ordres, without x.*" in told.output
    assert CliRunner().invoke(app, ["compare", *ends]).exit_code == 0


def test_an_unreachable_side_and_a_useless_number_of_jobs_are_errors(sides: tuple[Endpoint, Endpoint]) -> None:
    run(sides[0], "CREATE TABLE t (a int)")
    with pytest.raises(Unavailable):
        compare(sides[0], Endpoint(conn_id="x", url="host=127.0.0.1 port=1"), TablePatterns())
    with pytest.raises(ConfigurationError, match="jobs"):
        compare(*sides, TablePatterns(), jobs=0)


def test_a_comparison_that_is_cut_off_cancels_what_the_servers_compute(sides: tuple[Endpoint, Endpoint]) -> None:
    """One of its tables is locked for as long as that session lives."""
    for side in sides:
        run(side, "CREATE TABLE a (a int); CREATE TABLE b (a int)")

    def stop(table: TableComparison) -> None:
        raise KeyboardInterrupt(table.name)

    with psycopg.connect(sides[0].url) as holder:
        holder.execute("SET LOCAL idle_in_transaction_session_timeout = '60s'")
        holder.execute("LOCK a IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(KeyboardInterrupt, match=r"public\.b"):
            compare(*sides, TablePatterns(), jobs=2, progress=stop)
        holder.execute("SELECT 1")
