"""A value of another type than the target's column is stored with the text that it has at the source, or not at all."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from airflow_parallel_apply.pipeline.errors import StagingLost, TargetError
from airflow_parallel_apply.pipeline.model.change import Column, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.target.steps import Replay
from tests.integration.target.conftest import Scene
from tests.support.log_rows import Row, in_order
from tests.support.variants import gated


@dataclass(frozen=True)
class Pair:
    source: str
    target: str
    exact: str
    odd: tuple[str, ...]


UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
PAIRS = (
    Pair("text", "integer", "7", (" 7 ", "07", "+7", "1_000")),
    Pair("text", "numeric", "100", ("1e2", " 1", "+1")),
    Pair("text", "timestamp without time zone", "2024-02-29 00:00:00", ("2024-02-29", "20240229", "Feb 29 2024")),
    Pair("text", "boolean", "t", ("true", "yes", " t")),
    Pair("character varying(36)", "uuid", UUID, (UUID.upper(), f"{{{UUID}}}")),
    Pair("text", "character(3)", "abc", ("a", "abc  ")),
    Pair("character varying(3)", "character(3)", "abc", ("a", "")),
    Pair("character(3)", "character(5)", "\0", ("a  ",)),
    Pair("text", "money", "$1.00", ("1", "$1")),
    Pair("text", "bytea", "\\x00ff", ("\\xFF", "abc")),
    Pair("text", "name", "a", ("n" * 64,)),
    Pair("text", '"char"', "x", ("xy",)),
    Pair("integer", "interval", "\0", ("7",)),
    Pair("double precision", "numeric", "0.1", ("1e+20", "1e-07")),
    Pair("double precision", "real", "0.1", ("0.1234567890123",)),
    Pair("real", "double precision", "0.1", ("1e+06",)),
    Pair("bigint", "double precision", "7", ("9007199254740993",)),
    Pair("numeric", "integer", "7", ("7.0",)),
    Pair("numeric(5,1)", "numeric(6,3)", "\0", ("1.5",)),
    Pair("numeric", "numeric(6,3)", "1.500", ("1.5", "1.2345")),
    Pair("timestamp without time zone", "date", "\0", ("2024-02-29 00:00:00", "2024-02-29 23:00:00")),
    Pair("timestamp without time zone", "timestamp with time zone", "infinity", ("2024-02-29 00:00:00",)),
    Pair("time without time zone", "time(0) without time zone", "23:00:00", ("23:00:00.5",)),
    Pair("json", "jsonb", '{"a": 1}', ('{"a":1}', '{"a": 1, "a": 2}')),
    Pair("cidr", "inet", "10.0.0.0/8", ("10.0.0.1/32",)),
    Pair("text", "integer[]", "{1,NULL}", ("{1, null}", "[1:1]={1}")),
    Pair("text", "character varying(3)[]", "{abc}", ('{"abc  "}',)),
    Pair("text", "jsonb", '[1, "\\t"]', ("[1,2]",)),
    Pair("text", "inet", "10.0.0.1", ("10.0.0.1/32",)),
    Pair("amount", "numeric(6,2)", "1.50", ("1.5",)),
    Pair("pair", "pair", '(1.50,"a b")', ("(1.5,a)",)),
    Pair("pair[]", "pair[]", '{"(1.50,a)"}', ('{"(1.5,a)"}',)),
)  # fmt: skip
"""`exact`: what both print alike, "\0" where nothing is; the last three are types that the target has otherwise."""

PLAIN = {"text": "a", "integer": "7", "numeric": "7", "integer[]": "{}", "bytea": "\\x00", "public.mood": "sad"}
"""Types as the source names them, and a value of each."""


def the_table(scene: Scene, number: int, source: str, target: str, *, key: str = "integer") -> Relation:
    scene.run(f"CREATE TABLE t{number} (id {key} PRIMARY KEY, v {target})")
    columns = (Column(name="id", type_name="text", key=True), Column(name="v", type_name=source))
    found = Relation(
        relation_id=number, schema="public", table=f"t{number}", replica_identity=ReplicaIdentity.KEY, columns=columns
    )
    scene.relations[number] = found
    return found


@pytest.fixture
def started(scene: Scene) -> Scene:
    scene.start()
    scene.run("CREATE TYPE pair AS (n numeric(6,2), t text)")
    scene.run("CREATE TYPE mood AS ENUM ('sad')")
    scene.run("CREATE DOMAIN loose AS numeric")
    scene.run("CREATE DOMAIN whole AS integer")
    scene.target.take(0, generation=scene.generation, token="claim1")
    return scene


def insert(relation: Relation, seqno: int, key: str, value: str) -> Row:
    return Row(seqno=seqno, operation="I", values=(key, value), relation_id=relation.relation_id)


def refused(scene: Scene, way: str, row: Row) -> TargetError:
    with pytest.raises(TargetError) as caught:
        apply(scene, way, row)
    return caught.value


def apply(scene: Scene, way: str, row: Row) -> None:
    unit = scene.unit(row.seqno, after=row.seqno - 1)
    if way == "merge":
        scene.commit(scene.stage(unit, [row]))
    else:
        scene.target.commit(unit, [Replay(lambda: in_order(scene.relations, [row]))])


@gated
@pytest.mark.parametrize("way", ["merge", "replay"])
def test_a_value_is_stored_with_its_text_or_named(started: Scene, way: str) -> None:
    seqno = 0
    for number, pair in enumerate(PAIRS):
        table = the_table(started, number, pair.source, pair.target)
        for odd in pair.odd:
            error = refused(started, way, insert(table, seqno, "5", odd))
            told = str(error)
            assert f"table public.t{number}" in told, pair
            assert "column v" in told, (pair, told)
            if "another text" in told:
                assert "id=5" in told
                assert error.values == odd
        if pair.exact == "\0":
            continue
        apply(started, way, insert(table, seqno, "5", pair.exact))
        assert started.run(f"SELECT concat(v) FROM t{number}") == [(pair.exact,)], pair
        seqno += 1


@gated
@pytest.mark.parametrize(
    ("before", "after", "value"),
    [
        ("numeric", "integer", "1.5"),
        ("numeric(9,4)", "numeric(9,2)", "1.2345"),
        ("timestamp without time zone", "date", "2024-02-29 23:00:00"),
        ("character varying(9)", "character varying(3)", "abc  "),
        ("character varying", "character varying(3)", "abc  "),
        ("numeric", "whole", "1.5"),
        ("loose", "whole", "1.5"),
    ],
)
def test_a_column_that_became_narrower_behind_staging_takes_no_other_value(
    started: Scene, before: str, after: str, value: str
) -> None:
    table = the_table(started, 0, before, before)
    staged = started.stage(started.unit(0), [insert(table, 0, "5", value)])
    started.run(f"ALTER TABLE t0 ALTER v TYPE {after}")
    with pytest.raises(StagingLost, match="staged again"):
        started.commit(staged)
    refused(started, "merge", insert(table, 0, "5", value))
    started.run(f"ALTER TABLE t0 ALTER v TYPE {before}")
    apply(started, "merge", insert(table, 0, "5", value))
    assert started.run("SELECT concat(v) FROM t0") == [(value,)]


@gated
@pytest.mark.parametrize("way", ["merge", "replay"])
def test_a_key_in_another_spelling_is_another_key(started: Scene, way: str) -> None:
    """Else a delete of '07' would take the row of '7'."""
    table = the_table(started, 0, "text", "text")
    apply(started, "merge", insert(table, 0, "7", "kept"))
    told = str(refused(started, way, Row(seqno=1, operation="D", values=("07", None), relation_id=0)))
    assert "column id" in told
    assert "id=07" in told


def test_equal_types_cost_nothing(started: Scene) -> None:
    for number, (kind, value) in enumerate(PLAIN.items()):
        table = the_table(started, number, kind, kind, key="text")
        started.stage(started.unit(0), [insert(table, 0, "5", value)])
    kept = "SELECT count(*) FROM pg_attribute WHERE attname LIKE 'pa:text:%'"
    assert started.run(kept) == [(0,)]
    started.stage(started.unit(0), [insert(the_table(started, 9, "text", "integer"), 0, "5", "7")])
    assert started.run(kept) == [(2,)]
