"""A column that both sides compute is computed by one expression, or the run stops and says what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import psycopg
import pytest

from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import DdlPolicy, Start
from airflow_parallel_apply.pipeline.errors import FatalError
from airflow_parallel_apply.pipeline.model.change import Column, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import find_tables
from airflow_parallel_apply.pipeline.target.postgres.redefine.expressions import computed_otherwise
from tests.support.ddl_messages import install
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated, variants

_TABLE = "CREATE TABLE t (id integer PRIMARY KEY, b integer, g integer GENERATED ALWAYS AS ({}) STORED)"
_ROWS = "INSERT INTO t (id, b) SELECT i, i FROM generate_series(1, 40) i"
_STATEMENT = re.compile(
    r'ALTER TABLE "public"."t" (?:ALTER COLUMN "g" SET EXPRESSION AS \(\(.*?\)\)|DROP COLUMN "g"'
    r'|ADD COLUMN "g" integer GENERATED ALWAYS AS \(\(.*?\)\) STORED)'
)
_OTHERWISE = r"computes the column by another expression than the source: public\.t1? has it as integer as \(b \* 3\)"


def follow(rig: Rig, run: Callable[[], object], *, match: str = _OTHERWISE) -> None:
    """Run into the refusal, do what it says at the target, and run again."""
    with pytest.raises(FatalError, match=match) as refused:
        run()
    found = _STATEMENT.search(str(refused.value))
    assert found is not None, str(refused.value)
    execute(rig.target_dsn, found[0])
    run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


@gated
def test_a_target_that_computes_otherwise_is_refused_before_its_first_row(rig: Rig) -> None:
    execute(rig.source_dsn, _TABLE.format("b * 2"), _ROWS)
    execute(rig.target_dsn, _TABLE.format("b * 3"))
    follow(rig, rig.prepare, match=r"(?s)t, column g: the target computes.*SET EXPRESSION AS \(\(b \* 2\)\)")


@gated
def test_a_virtual_column_in_the_place_of_an_ordinary_one_is_replaced_as_the_hint_says(rig: Rig) -> None:
    """The server drops the expression of a stored one alone."""
    rig.write("CREATE TABLE t (id integer PRIMARY KEY, b integer, g integer)")
    execute(rig.target_dsn, _TABLE.format("b * 2").replace("STORED", "VIRTUAL"))
    with pytest.raises(FatalError, match="computes the column g") as refused:
        rig.prepare()
    command = re.search(r"Run (ALTER TABLE .*?)\. Then", str(refused.value))
    assert command is not None, str(refused.value)
    execute(rig.target_dsn, command[1])
    rig.prepare()
    rig.write("INSERT INTO t SELECT i, i, 7 FROM generate_series(1, 9) i")
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


@dataclass(frozen=True)
class Damage:
    """A change of the target's column alone, and the words of the run that meets it: before it opens, and behind."""

    statement: str
    before: str
    behind: str


DAMAGES = {
    "computes it otherwise": Damage("ALTER TABLE t ALTER g SET EXPRESSION AS (b * 3)", _OTHERWISE, _OTHERWISE),
    "loses it": Damage("ALTER TABLE t DROP g", "column g", "the target's table lacks it"),
}
WRITES = {"nothing": (), "rows": ("UPDATE t SET b = 5 WHERE id < 9",)}
SHORT = [(DdlPolicy.REFUSE, "nothing"), (DdlPolicy.APPLY, "rows")]


def begun(rig: Rig) -> Rig:
    """Both sides compute the column alike, and have its rows."""
    rig.both(_TABLE.format("b * 2"))
    rig.prepare()
    rig.write(_ROWS)
    rig.run()
    return rig


@gated
@pytest.mark.parametrize(
    ("ddl", "writes"),
    [
        pytest.param(ddl, writes, marks=() if (ddl, writes) in SHORT else pytest.mark.long)
        for ddl in DdlPolicy
        for writes in WRITES
    ],
)
@pytest.mark.parametrize("damage", variants(DAMAGES, seldom=[], gated=["loses it"]))
def test_a_target_that_computes_a_column_no_more_as_the_source_does_stops_the_next_run(
    rig: Rig, damage: str, ddl: DdlPolicy, writes: str
) -> None:
    rig = begun(rig.having(ddl=ddl))
    execute(rig.target_dsn, DAMAGES[damage].statement)
    checked = check_pipeline(rig.config, rig.source, rig.target)
    (fix,) = [finding.fix[0] for finding in checked.findings if finding.column == "g"]
    assert _STATEMENT.search(fix)
    assert "(b * 2)" in fix
    rig.write(*WRITES[writes])
    follow(rig, rig.run, match=DAMAGES[damage].before)


@gated
@pytest.mark.parametrize("damage", variants(DAMAGES, seldom=["loses it"]))
def test_one_that_begins_to_in_the_middle_of_a_run_stops_it_before_it_applies(rig: Rig, damage: str) -> None:
    rig = begun(rig)
    rig.write("UPDATE t SET b = 7")
    rig.capture("r")
    opened = rig.open("r")
    execute(rig.target_dsn, DAMAGES[damage].statement)
    with pytest.raises(FatalError, match=DAMAGES[damage].behind):
        rig.close(opened, rig.apply(opened))
    follow(rig, rig.run, match=DAMAGES[damage].before)


@gated
@pytest.mark.parametrize("table", [pytest.param("ALTER TABLE t1", marks=GATED), "ALTER TABLE t"])
def test_a_partition_with_an_expression_of_its_own_is_refused_on_either_side(rig: Rig, table: str) -> None:
    rig.both(
        _TABLE.format("b * 2") + " PARTITION BY RANGE (id)",
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (50)",
    )
    execute(rig.source_dsn, "ALTER TABLE t1 ALTER g SET EXPRESSION AS (b * 4)", _ROWS)
    with pytest.raises(
        FatalError, match=r"the partition public\.t1 computes the column g by an expression of its own"
    ) as refused:
        rig.prepare()
    hint = re.search(r"Run (ALTER TABLE .*?)\. It gives", refused.value.hint or "")
    assert hint is not None, refused.value.hint
    execute(rig.source_dsn, hint.group(1))
    rig.prepare()
    rig.run()
    execute(rig.target_dsn, f"{table} ALTER g SET EXPRESSION AS (b * 3)")
    follow(rig, rig.run)


@gated
def test_an_expression_that_reads_what_differs_between_servers_is_refused(rig: Rig) -> None:
    rig.both(_TABLE.format("b + (tableoid::bigint % 2)::integer"))
    with pytest.raises(FatalError, match=r'(?s)t, column g: the target computes.*t" DROP COLUMN "g"'):
        rig.prepare()
    execute(rig.target_dsn, "ALTER TABLE t DROP COLUMN g")
    rig.prepare()


def test_an_expression_is_the_same_in_any_words_of_its_server(target_dsn: str) -> None:
    """Servers of other versions have other words."""
    execute(
        target_dsn,
        "CREATE SCHEMA x",
        "CREATE FUNCTION x.f(integer) RETURNS integer IMMUTABLE LANGUAGE sql AS 'SELECT $1'",
        "CREATE TABLE t (id integer PRIMARY KEY, b integer, g integer GENERATED ALWAYS AS (x.f(b) * 2) STORED, "
        "h text GENERATED ALWAYS AS (lpad('', b, ' ')) STORED, n numeric GENERATED ALWAYS AS (b * 1.5) STORED)",
    )

    def otherwise(
        expression: str,
        *,
        path: str = "public",
        name: str = "g",
        type_name: str = "integer",
        read: str = "integer",
        is_tried: bool = True,
    ) -> list[str]:
        definition = f"{type_name} GENERATED ALWAYS AS ({expression}) STORED"
        relation = Relation(
            relation_id=1,
            schema="public",
            table="t",
            replica_identity=ReplicaIdentity.KEY,
            columns=(Column(name="id", type_name="integer", key=True), Column(name="b", type_name=read)),
            expressions=((name, definition),),
        )
        with psycopg.connect(target_dsn) as connection:
            connection.execute("SELECT set_config('search_path', %s, false)", [path])
            tables = [table for table in find_tables(connection, [relation]) if table]
            found = [column.name for column in computed_otherwise(connection, tables)]
            assert connection.execute("SHOW search_path").fetchone() == (path,)
            # A transaction that has made a temporary table cannot be prepared.
            assert connection.execute("SELECT pg_current_xact_id_if_assigned() IS NOT NULL").fetchone() == (is_tried,)
            return found

    assert otherwise("(x.f(b) * 2)", is_tried=False) == []
    assert otherwise("(x.f(b) * 2)", path="x, public", is_tried=False) == []
    assert otherwise("lpad('', b, ' ')", name="h", type_name="text") == []
    assert otherwise("lpad(''::text, b, '  '::text)", name="h", type_name="text") == ["h"]
    assert otherwise("lpad('', b, ' ')", name="h", type_name="character varying") == []
    # What a type rounds or cuts is not stored as it was, but computed here.
    assert otherwise("lpad('', b, ' ')", name="h", type_name="character varying(3)", is_tried=False) == ["h"]
    assert otherwise("((b)::numeric * 1.5)", name="n", type_name="integer", is_tried=False) == ["n"]
    assert otherwise("x.f(b)*(2)") == []
    assert otherwise("x.f(b) * 2::bigint") == ["g"]
    assert otherwise("b * 2") == ["g"]
    assert otherwise("x.h(b) * 2") == ["g"]
    assert otherwise("f(b) * 2", path="x, public") == ["g"]
    assert otherwise("b) STORED, ADD y integer GENERATED ALWAYS AS (b") == ["g"]
    # A cast to the column's type, or of what it is computed of, is in no expression.
    assert otherwise("lpad('', b, ' ')", name="h", type_name="character varying(5)", is_tried=False) == ["h"]
    assert otherwise("lpad('', b, ' ')", name="h", type_name="character varying") == []
    assert otherwise("(x.f(b) * 2)", read="smallint", is_tried=False) == ["g"]


TYPES = {
    "a cast to its type": ("a numeric(9,3), b integer, g numeric(9,2)", "a numeric(9,3), b integer, g numeric"),
    "a cast of what it reads": ("a integer, b integer, g integer", "a numeric, b integer, g integer"),
}


@pytest.mark.parametrize("types", variants(TYPES, seldom=[], gated=["a cast to its type"]))
def test_one_expression_of_other_types_is_another(rig: Rig, types: str) -> None:
    """Source and target print both in the same words, which leave out casts by assignment."""
    for dsn, columns in zip((rig.source_dsn, rig.target_dsn), TYPES[types], strict=True):
        execute(dsn, f"CREATE TABLE t (id integer PRIMARY KEY, {columns} GENERATED ALWAYS AS (a / b) STORED)")
    with pytest.raises(FatalError, match=r"t, column g: the target computes.*(where a is|numeric as)") as refused:
        rig.prepare()
    command = re.search(r"Run (ALTER TABLE .*?STORED)", str(refused.value))
    assert command is not None, str(refused.value)
    execute(rig.target_dsn, *command[1].split("; "))
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 7, 3), (2, 8, 3)")
    rig.run()
    assert rig.rows("SELECT g FROM t ORDER BY id", side="source") == rig.rows("SELECT g FROM t ORDER BY id")


@gated
def test_an_expression_that_changes_on_both_sides_in_turn_is_followed(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.REFUSE, start=Start.COPY)
    rig.both(_TABLE.format("b * 2"))
    install(rig.source_dsn)
    rig.prepare()
    rig.write(_ROWS, "ALTER TABLE t ALTER g SET EXPRESSION AS (b * 5)", "UPDATE t SET b = 7 WHERE id < 9")
    follow(rig, rig.run, match=r"the column g of public\.t is computed otherwise")


@gated
@pytest.mark.parametrize("kind", ["STORED", "VIRTUAL"])
def test_a_column_that_the_source_alone_computes_is_refused_before_the_first_row(rig: Rig, kind: str) -> None:
    if kind == "VIRTUAL" and psycopg.connect(rig.source_dsn).info.server_version < 180000:
        pytest.skip("the source has no such columns")
    execute(rig.source_dsn, _TABLE.format("b * 2").replace("STORED", kind), _ROWS)
    execute(rig.target_dsn, "CREATE TABLE t (id integer PRIMARY KEY, b integer)")
    lacks = f"public\\.t lacks the column g, which the source computes.*(ALTER TABLE .* {kind})"
    with pytest.raises(FatalError, match=lacks) as refused:
        rig.prepare()
    found = re.search(lacks, str(refused.value))
    assert found is not None
    execute(rig.target_dsn, found[1])
    rig.prepare()
    rig.run()
    assert rig.comparison().equal
