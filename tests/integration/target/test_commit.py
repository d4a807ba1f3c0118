"""Staging, merge and position of a channel's unit on a real server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest

from airflow_parallel_apply.pipeline.errors import LogError, TargetError, Unavailable
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import Unit
from airflow_parallel_apply.pipeline.target.postgres import target
from airflow_parallel_apply.pipeline.target.postgres.load.loader import PostgresLoader
from airflow_parallel_apply.pipeline.target.postgres.positions.positions import Standing, standing
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from tests.integration.target.conftest import Scene, insert
from tests.support.log_rows import Row, clustered
from tests.support.variants import gated

AddTable = Callable[..., Relation]


@gated
def test_insert_update_and_delete_reach_the_table_with_the_position(three: Scene) -> None:
    three.apply(
        5,
        [
            Row(seqno=1, operation="U", values=("1", "10", "a\tb\\c\nd\re")),
            Row(seqno=2, operation="D", values=("2", None, None)),
            insert(3, "4", None, "\\N"),
            insert(4, "5", "5", ""),
        ],
        after=0,
    )
    assert three.run("SELECT * FROM accounts ORDER BY id") == [
        (1, 10, "a\tb\\c\nd\re"),
        (3, 0, "note"),
        (4, None, "\\N"),
        (5, 5, ""),
    ]
    assert three.seqnos() == [5]
    assert three.staging() == []


@gated
def test_key_changes_in_a_chain_move_every_row_once(three: Scene) -> None:
    three.apply(
        1,
        [
            Row(seqno=1, fragno=0, operation="X", values=("3", None, None)),
            Row(seqno=1, fragno=1, operation="K", values=("4", "33", "was 3"), old_key=("3",)),
            Row(seqno=1, fragno=2, operation="X", values=("2", None, None)),
            Row(seqno=1, fragno=3, operation="K", values=("3", "22", "was 2"), old_key=("2",)),
        ],
        after=0,
    )
    assert three.run("SELECT * FROM accounts ORDER BY id") == [(1, 0, "note"), (3, 22, "was 2"), (4, 33, "was 3")]


@gated
def test_an_unsent_column_keeps_the_value_of_the_old_row(three: Scene) -> None:
    three.apply(
        9,
        [
            Row(seqno=1, operation="U", values=("1", "7", None), unsent=(2,)),
            Row(seqno=2, operation="U", values=("2", "8", "new")),
            Row(seqno=3, operation="U", values=("2", "9", None), unsent=(2,)),
            Row(seqno=4, operation="U", values=("3", "9", "sent")),
        ],
        after=0,
    )
    assert three.run("SELECT * FROM accounts ORDER BY id") == [(1, 7, "note"), (2, 9, "new"), (3, 9, "sent")]


@gated
def test_unsent_columns_may_begin_in_a_later_batch(three: Scene) -> None:
    rows = [Row(seqno=1, operation="U", values=("1", "1", "x")), Row(seqno=2, operation="U", values=("2", "2", "y"))]
    rows.append(Row(seqno=3, operation="U", values=("3", "3", None), unsent=(2,)))
    unit = three.unit(3, after=0)
    three.commit(three.stage(unit, rows, batch_rows=1))
    assert three.run("SELECT * FROM accounts ORDER BY id") == [(1, 1, "x"), (2, 2, "y"), (3, 3, "note")]


@gated
def test_a_missing_row_is_named_and_nothing_moves(three: Scene) -> None:
    staged = three.stage(
        three.unit(2, after=0),
        [Row(seqno=1, operation="U", values=("1", "7", "x")), Row(seqno=2, operation="U", values=("77", "7", "x"))],
    )
    with pytest.raises(TargetError, match=r"first: id=77 .*table public.accounts"):
        three.commit(staged)
    assert three.seqnos() == [0]
    assert three.run("SELECT balance FROM accounts WHERE id = 1") == [(0,)]


@gated
def test_a_missing_row_to_delete_is_named(three: Scene) -> None:
    staged = three.stage(three.unit(2, after=0), [Row(seqno=2, operation="D", values=("78", None, None))])
    with pytest.raises(TargetError, match="rows to delete are not in the target, first: id=78"):
        three.commit(staged)


@gated
def test_a_duplicate_key_is_named(three: Scene) -> None:
    staged = three.stage(three.unit(2, after=0), [insert(1, "3", "1", "x")])
    with pytest.raises(TargetError, match=r"\(id\) already exists"):
        three.commit(staged)
    assert three.seqnos() == [0]


def test_a_bad_value_is_refused_when_staged_with_column_and_seqno(three: Scene) -> None:
    with pytest.raises(TargetError) as caught:
        three.stage(three.unit(3, after=0), [insert(1, "7", "1", "x"), insert(2, "8", "one", "x")])
    assert (caught.value.table, caught.value.column, caught.value.seqno) == ("public.accounts", "balance", 2)
    assert three.staging() == []


def test_a_missing_table_or_column_is_named_when_staged(three: Scene, add_table: AddTable) -> None:
    add_table(2, "absent", "id", key="id")
    with pytest.raises(TargetError, match=r"table public\.absent"):
        three.stage(three.unit(1, after=0), [insert(1, "1", relation_id=2)])
    add_table(3, "accounts", "id extra", key="id")
    with pytest.raises(TargetError, match=r"table public\.accounts, column extra"):
        three.stage(three.unit(1, after=0), [insert(1, "1", "1", relation_id=3)])


def test_rows_of_an_undefined_relation_are_refused(three: Scene) -> None:
    loader = PostgresLoader(url=three.dsn, pipeline="demo", channel=0, token="t", relations=())
    with pytest.raises(LogError, match="relation 1"):
        loader.load(clustered(three.relations, [insert(1, "1", "1", "1")]), "a")


@gated
def test_several_attempts_of_one_table_are_merged_together(three: Scene) -> None:
    unit = three.unit(2, after=0)
    one = three.stage(unit, [Row(seqno=1, operation="U", values=("1", "5", "x")), insert(1, "8", "8", "8")])
    two = three.stage(unit, [Row(seqno=2, operation="D", values=("2", None, None)), insert(2, "9", "9", "9")])
    three.commit(replace(one, tables=one.tables + two.tables))
    assert three.run("SELECT id FROM accounts ORDER BY id") == [(1,), (3,), (8,), (9,)]


def test_a_unit_without_rows_only_moves_the_position(three: Scene) -> None:
    three.apply(7, [], after=0)
    assert three.seqnos() == [7]


def test_staging_that_lost_its_rows_is_to_be_staged_again(three: Scene) -> None:
    staged = three.stage(three.unit(1, after=0), [Row(seqno=1, operation="U", values=("1", "5", "x"))])
    three.run(f'TRUNCATE parallel_apply."{staged.tables[0].staging}"')
    with pytest.raises(Unavailable, match="lost rows"):
        three.commit(staged)
    three.target.discard(staged.unit.token)
    with pytest.raises(Unavailable, match="is gone"):
        three.commit(staged)
    assert three.seqnos() == [0]


@gated
def test_extra_defaulted_columns_and_another_column_order_are_fine(scene: Scene, add_table: AddTable) -> None:
    scene.run(
        """CREATE TABLE "Mixed Case" ("note it" text, loaded timestamptz DEFAULT now(), "Id" int,
           twice int GENERATED ALWAYS AS ("Id" * 2) STORED, PRIMARY KEY ("Id"))"""
    )
    add_table(1, "Mixed Case", "Id twice", key="Id")
    scene.start()
    scene.apply(0, [insert(0, "1", "2"), insert(0, "2", "4")])
    scene.apply(1, [Row(seqno=1, operation="U", values=("1", "2"))], after=0)
    assert scene.run("""SELECT "Id", "note it", twice, loaded IS NOT NULL FROM "Mixed Case" ORDER BY 1""") == [
        (1, None, 2, True),
        (2, None, 4, True),
    ]


@gated
def test_identity_columns_and_domains_are_written(scene: Scene, add_table: AddTable) -> None:
    scene.run("CREATE DOMAIN positive AS int NOT NULL CHECK (VALUE > 0)")
    scene.run("CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, p positive, q text)")
    add_table(1, "t", "id p q", key="id")
    scene.start()
    scene.apply(0, [insert(0, "1", "1", "a"), insert(0, "2", "2", "b")])
    scene.apply(
        1,
        [Row(seqno=1, operation="U", values=("1", "7", "z")), Row(seqno=1, operation="D", values=("2", None, None))],
        after=0,
    )
    assert scene.run("SELECT * FROM t") == [(1, 7, "z")]


@gated
def test_a_table_without_a_key_gets_every_row_once(scene: Scene, add_table: AddTable) -> None:
    scene.run("CREATE TABLE history (id int, what text)")
    add_table(1, "history", "id what")
    scene.start()
    scene.apply(1, [insert(0, "1", "a"), insert(1, "1", "a"), insert(1, None, None)])
    assert scene.run("SELECT count(*), count(id) FROM history") == [(3, 2)]


@gated
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("text", ("a", "b\tc", "ä")),
        ("varchar(9)", ("a", "b", "c")),
        ("char(5)", ("a    ", "b    ", "c    ")),
        ("uuid", tuple(f"00000000-0000-0000-0000-00000000000{n}" for n in range(3))),
        ("numeric", ("1.10", "-0.5", "12345678901234567890.123")),
        ("timestamp", ("2026-01-01 00:00:00", "infinity", "0044-03-15 00:00:00 BC")),
        ("timestamptz", ("2026-01-01 00:00:00+00", "2026-01-01 00:00:00.000001+00", "-infinity")),
        ("date", ("2026-01-01", "2026-01-02", "2026-01-03")),
        ("bytea", ("\\x00", "\\x5c", "\\xff")),
        ("double precision", ("0.1", "1e+300", "NaN")),
        ("bigint", ("-9223372036854775808", "0", "9223372036854775807")),
    ],
)
def test_keys_of_every_common_type_find_their_rows(
    scene: Scene, add_table: AddTable, kind: str, values: tuple[str, str, str]
) -> None:
    scene.run(f"CREATE TABLE t (k {kind}, part int, v text, PRIMARY KEY (k, part))")
    add_table(1, "t", "k part v", key="k part")
    scene.start()
    scene.apply(0, [insert(0, value, "1", "old") for value in values])
    scene.apply(
        1,
        [
            Row(seqno=1, operation="U", values=(values[0], "1", "new")),
            Row(seqno=1, operation="D", values=(values[1], "1", None)),
        ],
        after=0,
    )
    found = scene.run("SELECT k::text, v FROM t ORDER BY v")
    expected = [value.rstrip() if kind.startswith("char") else value for value in (values[0], values[2])]
    assert found == [(expected[0], "new"), (expected[1], "old")]


@gated
def test_an_equal_numeric_key_takes_the_text_of_its_last_change(scene: Scene, add_table: AddTable) -> None:
    scene.run("CREATE TABLE t (k numeric PRIMARY KEY, v text)")
    add_table(1, "t", "k v", key="k")
    scene.start()
    scene.apply(0, [insert(0, "1.0", "a")])
    scene.apply(1, [Row(seqno=1, operation="U", values=("1.00", "b"))], after=0)
    assert scene.run("SELECT k::text, v FROM t") == [("1.00", "b")]


@gated
def test_a_unique_value_moves_between_keys_when_it_is_freed_first(scene: Scene, add_table: AddTable) -> None:
    scene.run("CREATE TABLE t (k int PRIMARY KEY, v text UNIQUE)")
    add_table(1, "t", "k v", key="k")
    scene.start()
    scene.apply(0, [insert(0, "1", "a"), insert(0, "2", "b")])
    scene.apply(
        1,
        [
            Row(seqno=1, fragno=0, operation="D", values=("1", None)),
            Row(seqno=1, fragno=1, operation="U", values=("2", "a")),
            Row(seqno=1, fragno=2, operation="I", values=("3", "b")),
        ],
        after=0,
    )
    assert scene.run("SELECT * FROM t ORDER BY k") == [(2, "a"), (3, "b")]


@gated
def test_without_the_replica_role_parents_go_before_children(scene: Scene, add_table: AddTable) -> None:
    scene.run("CREATE TABLE parent (id int PRIMARY KEY)")
    scene.run("CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent)")
    scene.run(
        """CREATE ROLE plain LOGIN;
        GRANT USAGE, CREATE ON SCHEMA parallel_apply TO plain;
        GRANT ALL ON ALL TABLES IN SCHEMA parallel_apply, public TO plain"""
    )
    try:
        add_table(1, "child", "id parent", key="id")
        add_table(2, "parent", "id", key="id")
        scene.dsn = psycopg.conninfo.make_conninfo(scene.dsn, user="plain")
        scene.target = scene.another().target
        scene.start()
        scene.apply(0, [insert(0, "1", "1"), insert(0, "1", relation_id=2)])
        scene.apply(
            1,
            [
                Row(seqno=1, operation="D", values=("1", None)),
                Row(seqno=1, operation="D", values=("1",), relation_id=2),
            ],
            after=0,
        )
        assert scene.run("SELECT (SELECT count(*) FROM parent), (SELECT count(*) FROM child)") == [(0, 0)]
    finally:
        for target in scene.opened:
            target.close()
        scene.dsn = psycopg.conninfo.make_conninfo(scene.dsn, user="postgres")
        scene.run("DROP OWNED BY plain; DROP ROLE plain")


@gated
def test_a_session_that_ends_while_it_looks_finds_what_another_one_committed(
    three: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = three.unit(1, after=0)
    three.target.take(0, generation=three.generation, token=unit.token)
    staged = three.stage(unit, [insert(1, "4", "4", "new")])
    three.commit(staged)

    def ended(connection: Connection, session: Session, unit: Unit, *, lock: bool = False) -> Standing:
        monkeypatch.undo()
        connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return standing(connection, session, unit, lock=lock)

    monkeypatch.setattr(target, "standing", ended)
    three.commit(staged, by=three.another().target)
    assert three.run("SELECT note FROM accounts WHERE id = 4") == [("new",)]


def test_a_database_that_does_not_answer_is_unavailable(scene: Scene) -> None:
    scene.dsn = "host=127.0.0.1 port=1 dbname=none"
    with pytest.raises(Unavailable):
        scene.another().target.positions()
