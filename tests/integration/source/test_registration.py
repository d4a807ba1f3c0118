"""A capture stops at what a slot does not send of a followed table, whatever was undone meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.errors import SourceError
from airflow_parallel_apply.pipeline.source.postgres import PostgresSource
from tests.integration.source.conftest import Scene
from tests.support.variants import gated, variants

PARTITIONED = (
    "CREATE TABLE r (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)",
    "CREATE TABLE r21 PARTITION OF r2 FOR VALUES FROM (10) TO (15)",
)
ATTACHED = "CREATE TABLE r3 (LIKE r INCLUDING ALL)"
ATTACH = "ALTER TABLE r ATTACH PARTITION r3 FOR VALUES FROM (20) TO (30)"

FOLLOWED = {
    "a new partition": ["CREATE TABLE r3 PARTITION OF r DEFAULT", "INSERT INTO r VALUES (25)"],
    "a new partition below another": [
        "CREATE TABLE r22 PARTITION OF r2 FOR VALUES FROM (15) TO (20)",
        "INSERT INTO r VALUES (15)",
    ],
    "a new partition that is partitioned": [
        "CREATE TABLE r3 PARTITION OF r DEFAULT PARTITION BY LIST (id)",
        "CREATE TABLE r31 PARTITION OF r3 DEFAULT",
        "INSERT INTO r VALUES (25)",
    ],
    "an empty table attached": [ATTACHED, ATTACH],
    "all of it truncated": ["TRUNCATE r", "INSERT INTO r VALUES (3)"],
    "a partition rewritten": ["VACUUM FULL r1"],
    "a type that keeps the file": ["ALTER TABLE r ALTER v TYPE varchar", "ALTER TABLE r ALTER v SET STATISTICS 9"],
    "a column and a part rewritten": ["ALTER TABLE r ALTER v SET STATISTICS 9", "VACUUM FULL r1"],
    "a new index": ["CREATE INDEX ON r (v)", "ANALYZE r"],
}

STOPS = {
    "attached with rows": ([ATTACHED, "INSERT INTO r3 VALUES (20)", ATTACH], "r3 was attached with rows"),
    "made, filled and attached at once": (
        [f"BEGIN; {ATTACHED}; INSERT INTO r3 VALUES (20); {ATTACH}; COMMIT"],
        "r3 was attached with rows",
    ),
    "made, filled and attached at once, and altered in vain": (
        [
            f"BEGIN; {ATTACHED}; INSERT INTO r3 VALUES (20); {ATTACH}; COMMIT",
            "BEGIN; ALTER TABLE r3 ALTER v SET STATISTICS 9; ROLLBACK",
        ],
        "r3 was attached with rows",
    ),
    "the same, and vacuumed": (
        [
            f"BEGIN; {ATTACHED}; INSERT INTO r3 VALUES (20); {ATTACH}; COMMIT",
            "BEGIN; ALTER TABLE r3 ALTER v SET STATISTICS 9; ROLLBACK",
            "VACUUM FREEZE pg_attribute",
        ],
        "r3 was attached with rows",
    ),
    "attached below another": (
        [
            "CREATE TABLE r22 (LIKE r INCLUDING ALL)",
            "INSERT INTO r22 VALUES (15)",
            "ALTER TABLE r2 ATTACH PARTITION r22 FOR VALUES FROM (15) TO (20)",
        ],
        "r22 was attached with rows",
    ),
    "attached with partitions": (
        [
            "CREATE TABLE s (LIKE r INCLUDING ALL) PARTITION BY RANGE (id)",
            "CREATE TABLE s1 PARTITION OF s DEFAULT",
            "INSERT INTO s VALUES (20)",
            "ALTER TABLE r ATTACH PARTITION s FOR VALUES FROM (20) TO (30)",
        ],
        "s1 was attached with rows",
    ),
    "detached": (["ALTER TABLE r DETACH PARTITION r1"], "r1 was detached or dropped"),
    "detached by another way": (["ALTER TABLE r DETACH PARTITION r1 CONCURRENTLY"], "r1 was detached or dropped"),
    "dropped": (["DROP TABLE r2"], "r21 was detached or dropped"),
    "detached and attached": (
        ["ALTER TABLE r DETACH PARTITION r1", "ALTER TABLE r ATTACH PARTITION r1 FOR VALUES FROM (0) TO (10)"],
        "r1 was detached and attached again",
    ),
    "truncated": (["TRUNCATE r21"], "r21 was truncated"),
    "truncated with all before": (["BEGIN; TRUNCATE r; INSERT INTO r VALUES (1); TRUNCATE r1; COMMIT"], "r1 was trunc"),
    "truncated and rewritten": (["TRUNCATE r1", "VACUUM FULL r1"], "r1 was truncated"),
    "a new one truncated": (
        ["BEGIN; CREATE TABLE r3 PARTITION OF r DEFAULT; INSERT INTO r VALUES (25); TRUNCATE r3; COMMIT"],
        "r3 was truncated",
    ),
    "a type changed": (["ALTER TABLE r ALTER v TYPE varchar(20)"], "public.r was rewritten while v changed"),
    "dropped and created": (["DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY, v text)"], "t was dropped and cre"),
    "not published any more": (["ALTER PUBLICATION {p} DROP TABLE t"], "t was dropped from the publication"),
    "published again": (
        ["ALTER PUBLICATION {p} DROP TABLE t", "INSERT INTO t VALUES (7)", "ALTER PUBLICATION {p} ADD TABLE t"],
        "t was dropped from the publication and added again",
    ),
    "a row filter": (["ALTER PUBLICATION {p} SET TABLE r, t WHERE (id > 2)"], "t has a row filter"),
    "a column list": (["ALTER PUBLICATION {p} SET TABLE r, t (id)"], "t has a column list"),
    "a row filter that was there": (
        ["ALTER PUBLICATION {p} SET TABLE r, t WHERE (id > 2)", "ALTER PUBLICATION {p} SET TABLE r, t"],
        "t was dropped from the publication and added again",
    ),
    "insertions alone": (["ALTER PUBLICATION {p} SET (publish = 'insert')"], "does not publish update, delete, trunc"),
    "insertions alone for a while": (
        [
            "ALTER PUBLICATION {p} SET (publish = 'insert')",
            "ALTER PUBLICATION {p} SET (publish = 'insert, update, delete, truncate')",
        ],
        "was altered, so changes of public.r may be missing",
    ),
    "partitions by themselves": (
        ["ALTER PUBLICATION {p} SET (publish_via_partition_root = false)"],
        "does not publish partitions as their root",
    ),
    "a table of somebody's": (
        ["CREATE TABLE u (id int PRIMARY KEY)", "INSERT INTO u VALUES (1)", "ALTER PUBLICATION {p} ADD TABLE u"],
        "u was added to publication {p} by somebody else",
    ),
}


@pytest.fixture
def begun(scene: Scene) -> Scene:
    scene.execute(*PARTITIONED, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    scene.source().prepare()
    scene.execute("INSERT INTO r SELECT i FROM generate_series(0, 14) i", "INSERT INTO t VALUES (1), (2)")
    scene.capture()
    return scene


def written(scene: Scene, statements: list[str]) -> None:
    scene.execute(*(statement.format(p=scene.slot) for statement in statements))


@gated
@pytest.mark.parametrize("case", variants(FOLLOWED, seldom=["a new partition below another", "a new index"]))
def test_what_the_slot_sends_is_followed(begun: Scene, case: str) -> None:
    written(begun, FOLLOWED[case])
    assert begun.source().findings() == ()
    begun.capture()
    begun.source().prepare()
    for table in ("r", "t"):
        with psycopg.connect(begun.dsn) as connection:
            rows = connection.execute(f"SELECT id::text FROM {table} ORDER BY 1").fetchall()
        assert sorted(row[:1] for row in begun.contents().get(f"public.{table}", [])) == rows
    assert not begun.source().has_changes(begun.state().place)


@pytest.mark.parametrize(
    "case",
    variants(
        STOPS,
        seldom=[
            "made, filled and attached at once", "attached below another", "detached by another way", "dropped",
            "truncated and rewritten", "a column list", "a row filter that was there", "insertions alone",
        ],
    ),
)  # fmt: skip
def test_what_the_slot_does_not_send_stops_a_capture(begun: Scene, case: str) -> None:
    statements, what = STOPS[case]
    what = what.format(p=begun.slot)
    written(begun, statements)
    assert begun.source().has_changes(begun.state().place)
    before = begun.state()
    for look in (begun.capture, begun.source().prepare):
        with pytest.raises(SourceError) as caught:
            look()
        assert what in caught.value.message
        assert caught.value.hint
    assert any(what in finding.what for finding in begun.source().findings())
    assert begun.state().last_seqno == before.last_seqno


GONE = {
    "attached, filled and detached": [
        ATTACHED, ATTACH, "UPDATE r SET v = 1 WHERE id < 5", "INSERT INTO r VALUES (25)",
        "ALTER TABLE r DETACH PARTITION r3",
    ],
    "attached, emptied and detached": [
        ATTACHED, "INSERT INTO r3 VALUES (20)", ATTACH, "UPDATE r SET id = 21 WHERE id = 20",
        "ALTER TABLE r DETACH PARTITION r3",
    ],
    "made, filled by its own name and dropped": [
        "CREATE TABLE r3 PARTITION OF r DEFAULT", "INSERT INTO r3 VALUES (25)", "DROP TABLE r3",
    ],
    "rows moved to one below another": [
        "CREATE TABLE r22 PARTITION OF r2 FOR VALUES FROM (15) TO (20)", "UPDATE r SET id = 17 WHERE id = 3",
        "ALTER TABLE r2 DETACH PARTITION r22 CONCURRENTLY", "DROP TABLE r22",
    ],
    "of another table now": [
        ATTACHED, ATTACH, "INSERT INTO r VALUES (25)", "ALTER TABLE r DETACH PARTITION r3",
        "CREATE TABLE s (LIKE r) PARTITION BY RANGE (id)", "ALTER TABLE s ATTACH PARTITION r3 DEFAULT",
    ],
}  # fmt: skip


@gated
@pytest.mark.parametrize("case", GONE)
def test_a_partition_that_had_rows_and_went_between_two_captures_stops_the_second(begun: Scene, case: str) -> None:
    begun.execute(*GONE[case])
    for size in (8 * 2**20, 1):
        # Patterns need not match what is no table of its own.
        source = begun.source(batch_bytes=size, tables=TablePatterns(include=("public.[rt]",)))
        with pytest.raises(
            SourceError, match=r"rows of public\.r were written to public\.r(3|22)(?s:.*)--table public\.r`"
        ):
            list(source.capture(source.offset(), max_changes=100, cancelled=lambda: False))


def test_one_that_comes_back_while_it_is_read_of_does_not_bring_back_the_rows_that_it_took_along(
    begun: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun.execute(ATTACHED, ATTACH, "INSERT INTO r VALUES (25)", "ALTER TABLE r DETACH PARTITION r3")
    read = PostgresSource.read

    def behind(self: PostgresSource, *given: Any, **named: Any) -> Any:
        begun.execute("TRUNCATE r3", ATTACH)
        return read(self, *given, **named)

    monkeypatch.setattr(PostgresSource, "read", behind)
    with pytest.raises(SourceError, match=r"rows of public\.r were written to public\.r3"):
        begun.capture()


def test_one_that_came_and_went_without_a_row_changes_nothing(begun: Scene) -> None:
    begun.execute(ATTACHED, "INSERT INTO r3 VALUES (20)", ATTACH, "UPDATE r SET v = 1 WHERE id = 4")
    begun.execute("ALTER TABLE r DETACH PARTITION r3", "DELETE FROM r WHERE id = 5")
    begun.capture()
    assert {relation.name for relation in begun.state().relations} == {"public.r", "public.t"}


@gated
def test_a_change_behind_what_is_asked_for_is_told_by_the_next_capture(begun: Scene) -> None:
    begun.execute("INSERT INTO t VALUES (3)")
    source = begun.source()
    until = source.offset()
    list(source.capture(until, max_changes=1, cancelled=lambda: False))
    begun.execute("ALTER TABLE r DETACH PARTITION r1")
    list(source.capture(until, max_changes=10, cancelled=lambda: False))
    with pytest.raises(SourceError, match="r1 was detached"):
        begun.capture()


@gated
def test_a_host_without_the_log_sees_changes_alone(begun: Scene, tmp_path: Path) -> None:
    begun.execute("TRUNCATE r1")
    place = begun.state().place
    assert begun.source().has_changes(place)
    assert not begun.source(log_url=str(tmp_path / "elsewhere")).has_changes(place)


@gated
@pytest.mark.parametrize("rows", [True, False])
def test_a_new_table_is_something_to_do_though_none_of_its_rows_is_sent(begun: Scene, rows: bool) -> None:
    assert not begun.source().has_changes(begun.state().place)
    begun.execute("CREATE TABLE born (id int PRIMARY KEY)", *["INSERT INTO born VALUES (1)"] * rows)
    assert begun.source().has_changes(begun.state().place)
    others = TablePatterns(include=("public.[rt]",))
    assert not begun.source(tables=others).has_changes(begun.state().place)
    if not rows:
        begun.source().prepare()
        begun.capture()
        assert not begun.source().has_changes(begun.state().place)


@gated
def test_a_table_that_was_dropped_is_told_when_it_comes_back(begun: Scene) -> None:
    begun.execute("DROP TABLE t")
    begun.source().prepare()
    begun.capture()
    assert not begun.source().has_changes(begun.state().place)
    begun.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    with pytest.raises(SourceError, match=r"public\.t was dropped and created again"):
        begun.source().prepare()


@gated
def test_a_name_that_passes_from_a_dropped_table_to_another_is_told(begun: Scene) -> None:
    begun.execute("CREATE TABLE again (LIKE t INCLUDING ALL)")
    begun.source().prepare()
    begun.capture()
    begun.execute("DROP TABLE t", "ALTER TABLE again RENAME TO t")
    with pytest.raises(SourceError, match=r"public\.t was dropped, and public\.again has its name now"):
        begun.source().prepare()
