"""A pipeline into topics: every change is there once, in the order of its key, and nothing of a former owner."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from airflow_parallel_apply.demo.kafka import KafkaBroker
from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import Consistency, DdlPolicy, Start
from airflow_parallel_apply.pipeline.errors import FatalError, ParallelApplyError
from airflow_parallel_apply.pipeline.model.finding import errors
from tests.support.kafka import committed
from tests.support.kafka.feeds import changes, place_of, replayed
from tests.support.rig import Rig, skip_as_the_hint_says
from tests.support.variants import gated

TABLE = "CREATE TABLE t (id integer PRIMARY KEY, v text, n numeric(10, 2))"
TOPIC = "feed.public.t"

Make = Callable[..., Rig]


def of_source(rig: Rig) -> dict[int, dict[str, object]]:
    rows = rig.rows("SELECT id, v, n::text FROM t", side="source")
    return {row[0]: dict(zip(("id", "v", "n"), row, strict=True)) for row in rows}


def change(rig: Rig) -> None:
    rig.write(
        "INSERT INTO t SELECT i, 'v' || i, i / 4.0 FROM generate_series(1, 200) i",
        "UPDATE t SET v = v || '!' WHERE id % 2 = 0",
        "UPDATE t SET v = v || '?' WHERE id % 4 = 0",
        "DELETE FROM t WHERE id % 5 = 0",
        "UPDATE t SET id = id + 1000 WHERE id < 20",
    )


@gated
@pytest.mark.parametrize(
    ("channels", "consistency", "partition_by"),
    [
        (3, Consistency.CHANNEL, "key"),
        pytest.param(3, Consistency.EPOCH, "channel", marks=pytest.mark.long),
        pytest.param(3, Consistency.CHANNEL, "channel", marks=pytest.mark.long),
        pytest.param(3, Consistency.EPOCH, "key", marks=pytest.mark.long),
        pytest.param(1, Consistency.CHANNEL, "key", marks=pytest.mark.long),
    ],
)
def test_a_topic_has_every_change_once(
    make_rig: Make, broker: KafkaBroker, channels: int, consistency: Consistency, partition_by: str
) -> None:
    rig = make_rig(TABLE, partition_by=partition_by).having(channels=channels, consistency=consistency)
    rig.prepare()
    for _ in range(2):
        change(rig)
        rig.run()
        assert replayed(broker.address, TOPIC) == of_source(rig)
        assert rig.comparison().equal
        rig.write("DELETE FROM t")
    updates = [read for read in changes(broker.address, TOPIC) if read.headers["operation"] == "update"]
    assert len(updates) == 2 * (100 + 50), "each change of a key, and not the last alone"
    if partition_by == "channel":
        for one, other in pairwise(committed(broker.address, TOPIC)):
            assert one.partition != other.partition or place_of(one) < place_of(other)


@gated
def test_staged_files_are_gone_when_a_run_ends(make_rig: Make, tmp_path: Path) -> None:
    rig = make_rig(TABLE)
    rig.prepare()
    change(rig)
    rig.run()
    assert [path for path in (tmp_path / "staging").rglob("*") if path.is_file()] == []


@gated
def test_truncates_and_new_definitions_come_in_their_place(make_rig: Make, broker: KafkaBroker) -> None:
    rig = make_rig(TABLE).having(ddl=DdlPolicy.SKIP)
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a'), (2, 'b')", "TRUNCATE t", "INSERT INTO t VALUES (3, 'c')")
    rig.run()
    assert set(replayed(broker.address, TOPIC)) == {3}
    truncates = [read for read in committed(broker.address, TOPIC) if read.headers["operation"] == "truncate"]
    assert [read.partition for read in truncates] == [0, 1, 2], "whoever reads one partition learns of it"
    rig.write("ALTER TABLE t ADD COLUMN more text", "INSERT INTO t (id, v, more) VALUES (4, 'd', 'x')")
    rig.run()
    assert replayed(broker.address, TOPIC)[4]["more"] == "x"


@gated
def test_a_new_definition_that_the_pipeline_refuses_stops_it(make_rig: Make, broker: KafkaBroker) -> None:
    rig = make_rig(TABLE)
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a')")
    rig.run()
    rig.write("ALTER TABLE t ADD COLUMN more text", "INSERT INTO t (id, v, more) VALUES (4, 'd', 'x')")
    with pytest.raises(ParallelApplyError, match="ddl=skip"):
        rig.run()
    assert set(replayed(broker.address, TOPIC)) == {1}


@gated
def test_the_hint_says_which_rows_consumers_would_have_twice_or_with_former_texts(make_rig: Make) -> None:
    rig = make_rig("CREATE TABLE t (id integer PRIMARY KEY, c char(3))")
    rig.ddl("")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a')")
    rig.run()
    for altering, said in (
        ("ALTER id TYPE bigint", "Hint: Tell its consumers"),
        ("ALTER c TYPE text", "another text in c since.*Hint: Update these rows"),
        ("ALTER id TYPE text", "other keys than those before.*Hint: To start anew"),
    ):
        rig.write(f"ALTER TABLE t {altering}", "INSERT INTO t SELECT max(id::integer) + 1, 'b' FROM t")
        with pytest.raises(FatalError, match=said) as told:
            rig.run()
        rig.write("UPDATE t SET c = c")
        skip_as_the_hint_says(rig, told.value)
        rig.run()
        assert rig.comparison().equal is ("anew" not in said)


@gated
def test_ddl_that_was_sent_leads_to_a_run_that_skips_it(make_rig: Make, broker: KafkaBroker) -> None:
    rig = make_rig(TABLE)
    rig.prepare()
    rig.transaction(rig.ddl("CREATE TABLE made ()"), rig.ddl("DROP TABLE made"), "INSERT INTO t VALUES (1, 'a')")
    with pytest.raises(FatalError, match=r"refuses: .*CREATE TABLE made.*; .*DROP TABLE made") as told:
        rig.run()
    assert "ddl=apply" not in str(told.value)
    rig.transaction(rig.ddl("CREATE TABLE later ()"), "INSERT INTO t VALUES (2, 'b')")
    skip_as_the_hint_says(rig, told.value)
    assert set(replayed(broker.address, TOPIC)) == {1}
    with pytest.raises(FatalError, match=r"refuses: .*CREATE TABLE later"):
        rig.run()


@gated
def test_a_large_transaction_that_runs_alone_is_staged_in_sets(make_rig: Make, broker: KafkaBroker) -> None:
    rig = make_rig(TABLE)
    rig.prepare()
    rig.transaction(
        "INSERT INTO t SELECT i, 'old' FROM generate_series(1, 1000) i",
        "TRUNCATE t",
        "INSERT INTO t SELECT i, 'new' FROM generate_series(1, 1000) i",
    )
    rig.run()
    assert len(changes(broker.address, TOPIC)) == 2001
    assert {row["v"] for row in replayed(broker.address, TOPIC).values()} == {"new"}


@gated
def test_columns_that_were_not_sent_are_named(make_rig: Make, broker: KafkaBroker) -> None:
    rig = make_rig(
        "CREATE TABLE t (id integer PRIMARY KEY, v text, big text)", "ALTER TABLE t ALTER big SET STORAGE EXTERNAL"
    )
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a', repeat('x', 9000))", "UPDATE t SET v = 'b'", "UPDATE t SET id = 2")
    rig.run()
    last = [json.loads(read.value or b"") for read in changes(broker.address, TOPIC)]
    assert [(row["_operation"], row["_unsent"]) for row in last][:2] == [("insert", None), ("update", '["big"]')]
    arrived = last[-1]
    assert (arrived["_operation"], arrived["_old_key"], arrived["_unsent"]) == ("insert", "1", '["big"]')


@gated
def test_tables_without_a_key_send_whole_rows(make_rig: Make, broker: KafkaBroker) -> None:
    rig = make_rig("CREATE TABLE t (a integer, b text)", "ALTER TABLE t REPLICA IDENTITY FULL")
    rig.prepare()
    rig.write(
        "INSERT INTO t VALUES (1, 'x'), (1, 'x'), (2, 'y')",
        "UPDATE t SET b = 'z' WHERE a = 2",
        "DELETE FROM t WHERE a = 1",
    )
    rig.run()
    bag: list[tuple[int, str]] = []
    for read in changes(broker.address, TOPIC):
        assert read.key is None
        row = json.loads(read.value or b"")
        if row["_operation"] == "insert":
            bag.append((row["a"], row["b"]))
        else:
            bag.remove((row["a"], row["b"]))
    assert bag == [(2, "z")]


@gated
def test_a_deletion_leaves_a_tombstone_on_request(make_rig: Make, broker: KafkaBroker) -> None:
    rig = make_rig(TABLE, tombstones="true")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a'), (2, 'b')", "DELETE FROM t WHERE id = 1")
    rig.run()
    compacted = {read.key: read.value for read in committed(broker.address, TOPIC)}
    assert compacted[b'{"id":1}'] is None
    assert json.loads(compacted[b'{"id":2}'] or b"")["v"] == "b"
    assert set(replayed(broker.address, TOPIC)) == {2}


@gated
def test_equal_keys_have_one_text(make_rig: Make, broker: KafkaBroker) -> None:
    rig = make_rig("CREATE TABLE t (id numeric, f double precision, c char(4), PRIMARY KEY (id, f, c))")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1.0, '-0', 'x')", "DELETE FROM t", "INSERT INTO t VALUES (1.00, 0, 'x  ')")
    rig.run()
    assert {read.key for read in changes(broker.address, TOPIC)} == {b'{"id":"1","f":0,"c":"x"}'}


@pytest.mark.parametrize(
    ("tables", "options", "said"),
    [
        (['CREATE TABLE "a.b" (id integer PRIMARY KEY)'], {}, "has a name that no topic can have"),
        (["CREATE TABLE f (k interval PRIMARY KEY)"], {}, "equal values may have several texts"),
        (["CREATE TABLE u (a integer)", "ALTER TABLE u REPLICA IDENTITY FULL"], {"tombstones": "true"}, "has no key"),
    ],
)
def test_check_refuses_by_name_what_topics_cannot_hold(
    make_rig: Make, tables: list[str], options: dict[str, str], said: str
) -> None:
    rig = make_rig(*tables, **options)
    found = errors(check_pipeline(rig.config, rig.source, rig.target).findings)
    assert any(said in finding.what and finding.is_table for finding in found), found
    with pytest.raises(ParallelApplyError, match=said):
        rig.prepare()


@gated
def test_a_keys_text_is_chosen_before_its_first_message(make_rig: Make) -> None:
    rig = make_rig("CREATE TABLE t (id integer, at timestamp, d date, v text, PRIMARY KEY (id, at, d))")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, '2026-01-01', '2026-01-01', 'a')")
    rig.run()
    same = replace(rig, target_dsn=f"{rig.target_dsn}&text_columns=public.t.d,public.t.v")
    rig.write("UPDATE t SET v = 'b'")
    same.run()
    assert same.comparison().equal
    other = replace(rig, target_dsn=f"{rig.target_dsn}&text_columns=public.t.id,public.t.at,public.t.d")
    with pytest.raises(ParallelApplyError, match=r"table public\.t has messages whose key does not have id, at as"):
        other.run()


@gated
def test_rows_that_were_there_come_first_as_reads(make_rig: Make, broker: KafkaBroker) -> None:
    rig = make_rig(TABLE).having(start=Start.COPY, epoch_max_changes=50)
    change(rig)
    rig.prepare()
    rig.write("DELETE FROM t WHERE id % 3 = 0", "INSERT INTO t VALUES (5000, 'new')")
    rig.run()
    assert replayed(broker.address, TOPIC) == of_source(rig)
    comparison = rig.comparison()
    assert comparison.equal, comparison
    operations = [read.headers["operation"] for read in changes(broker.address, TOPIC)]
    assert operations[:160] == ["read"] * 160
    assert "read" not in operations[160:]
    assert operations[-1] == "insert"
    for start in (Start.COPY, Start.EQUAL):
        anew = rig.having(pipeline="anew", log_url=f"{rig.config.log_url}2", start=start)
        again = check_pipeline(anew.config, rig.source, rig.target)
        found = [one for one in again.findings if "has a topic feed.public.t that is not empty" in one.what]
        assert "topics of another prefix" in found[0].note


@gated
def test_a_pipeline_without_its_positions_sends_nothing_twice(make_rig: Make, broker: KafkaBroker) -> None:
    rig = make_rig(TABLE)
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    rig.run()
    broker.state.delete("feed._positions.demo")
    rig.write("UPDATE t SET v = 'c'")
    with pytest.raises(ParallelApplyError, match=r"the positions in topic feed\._positions\.demo are gone"):
        rig.run()
    assert len(changes(broker.address, TOPIC)) == 2
    broker.state.topics.clear()
    rig.run()
    assert replayed(broker.address, TOPIC) == of_source(rig), "a broker that has lost everything gets it again"


def test_check_refuses_a_positions_topic_that_forgets(make_rig: Make, broker: KafkaBroker) -> None:
    rig = make_rig(TABLE)
    broker.state.create("feed._positions.demo", 257, {"cleanup.policy": "compact,delete"})
    found = errors(check_pipeline(rig.config, rig.source, rig.target).findings)
    assert [(finding.where, "cleanup.policy=compact,delete" in finding.what) for finding in found] == [
        ("feed._positions.demo", True)
    ]
    broker.state.settings["feed._positions.demo"]["cleanup.policy"] = "compact"
    assert not errors(check_pipeline(rig.config, rig.source, rig.target).findings)
