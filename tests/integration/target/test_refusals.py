"""A refusal of the target is told as what it is, without the row's values; the hint that is followed leads to equal."""

from __future__ import annotations

import re
import traceback
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import PipelineConfig, Start, TablePatterns
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import FatalError, Unavailable
from airflow_parallel_apply.pipeline.target.postgres.session import Session
from tests.integration.target.refusals import REFUSALS, SECRET
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated, variants


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    config = PipelineConfig(
        pipeline="p",
        log_url=str(tmp_path / "log"),
        start=Start.EMPTY,
        channels=1,
        tables=TablePatterns(include=("public.*",)),
    )
    return Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)


@pytest.mark.parametrize(
    "name",
    variants(
        REFUSALS,
        seldom=[
            "a domain's check", "not null", "another type", "another type with a default", "an exclusion",
            "a domain's not null", "a composite type of the same name", "a narrower domain of the same name",
            "a computed column of its own", "an index without room", "no partition under a name that is taken",
            "bounds of a partition", "a unique index alone",
            "a check of the domain below", "a trigger of one partition, whose function calls another",
            "one of several expressions, which reads a text", "a trigger that calls itself",
            "a label of an enum inside a domain", "a label of an enum inside a range",
        ],
        gated=[
            "a truncated parent", "a check of a parent", "a check of a partition alone", "a unique index",
            "a narrower type", "no partition", "an index of an expression", "a function that finds no table",
            "an array of a narrower domain of the same name",
            "an event trigger", "no partition by hash", "one of several expressions", "a partition that is referred to",
        ],
    ),
)  # fmt: skip
def test_a_refusal_is_told_as_what_it_is_and_its_hint_leads_on(
    rig: Rig, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    case = REFUSALS[name]
    execute(rig.source_dsn, *case.source.split("; "))
    execute(rig.target_dsn, *case.target.split("; ") if "$$" not in case.target else [case.target])
    rig.prepare()
    rig.write(*case.changes)
    with pytest.raises(FatalError) as caught:
        rig.run()
    told = str(caught.value)
    for word in (*case.says, "Hint: "):
        assert word in told, told
    everything = told + caplog.text + "".join(traceback.format_exception(caught.value))
    assert SECRET not in everything
    assert "70" not in told
    execute(rig.target_dsn, case.follow or printed(told))
    rig.run()
    assert rig.comparison().equal


@gated
def test_values_that_are_none_of_the_source_type_are_emptied_and_copied_as_the_hint_says(rig: Rig) -> None:
    rig = rig.having(tables=TablePatterns(include=("public.t",)))
    execute(rig.source_dsn, "CREATE TABLE t (id int PRIMARY KEY, v uuid)")
    execute(rig.target_dsn, "CREATE TABLE t (id int PRIMARY KEY, v int DEFAULT 7)")
    rig.prepare()
    rig.write("INSERT INTO t (id) VALUES (1)")
    rig.run()
    execute(rig.target_dsn, "UPDATE t SET v = 7")
    rig.write("INSERT INTO t VALUES (2, '00000000-0000-0000-0000-000000000000')")
    with pytest.raises(FatalError, match="Should it fail for a value that is there, empty the table") as caught:
        rig.run()
    statement = printed(str(caught.value))
    with pytest.raises(psycopg.DataError):
        execute(rig.target_dsn, statement)
    execute(rig.target_dsn, "TRUNCATE t", statement)
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t")], report=lambda progress: None)
    rig.run()
    assert rig.comparison().equal


def test_what_the_server_lacks_is_told_with_its_own_hint(target_dsn: str) -> None:
    short = "DO $$BEGIN RAISE 'no room' USING ERRCODE = 'out_of_memory', HINT = 'Set more.'; END$$"
    with (
        closing(Session(target_dsn, pipeline="p")) as session,
        pytest.raises(Unavailable, match=r"lacks what it needs: no room .*Hint: Set more\."),
        session.errors("commit"),
    ):
        session.connection().execute(short)


@pytest.mark.long
def test_changes_that_a_publication_of_the_target_cannot_send_are_told_with_what_leads_on(rig: Rig) -> None:
    execute(rig.source_dsn, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    execute(rig.target_dsn, "CREATE TABLE t (id int NOT NULL UNIQUE, v text)")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    rig.run()
    execute(rig.target_dsn, "CREATE PUBLICATION everything FOR ALL TABLES")
    rig.write("UPDATE t SET v = 'c' WHERE id = 1", "DELETE FROM t WHERE id = 2")
    with pytest.raises(FatalError, match="A publication of the target") as caught:
        rig.run()
    execute(rig.target_dsn, printed(str(caught.value)))
    rig.run()
    assert rig.comparison().equal


def printed(told: str) -> str:
    """The hint's SQL, with the settings before it."""
    found = re.search(r"Run ((?:SET [^;]+; )*.+?)(?:; | at the target)", told.split("Hint: ")[1])
    assert found is not None, told
    return found[1]


@gated
@pytest.mark.parametrize("name", ["a check of a partition", pytest.param("a label of an enum", marks=GATED)])
def test_what_a_copy_is_refused_is_told_with_what_leads_on(rig: Rig, name: str) -> None:
    rig = rig.having(start=Start.COPY)
    case = REFUSALS[name]
    execute(rig.source_dsn, *case.source.split("; "), *case.changes)
    execute(rig.target_dsn, *case.target.split("; "))
    with pytest.raises(FatalError, match="Run ALTER T") as caught:
        rig.prepare()
    execute(rig.target_dsn, printed(str(caught.value)))
    rig.prepare()
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_message_of_any_length_is_told_by_its_beginning(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id int PRIMARY KEY, v text)")
    execute(
        rig.target_dsn,
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'never this: %', NEW.v; END$$",
        "CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION no()",
        "ALTER TABLE t ENABLE ALWAYS TRIGGER g",
    )
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, repeat('x', 2000000))")
    with pytest.raises(FatalError, match=r"never this: x.*Hint: ") as caught:
        rig.run()
    assert len(str(caught.value)) < 10_000


@gated
def test_values_are_told_where_a_parameter_asks(rig: Rig) -> None:
    rig = rig.having(error_values=True)
    case = REFUSALS["a check"]
    execute(rig.source_dsn, case.source)
    execute(rig.target_dsn, case.target)
    rig.prepare()
    rig.write(*case.changes)
    with pytest.raises(FatalError, match=f"Values: .*{SECRET}"):
        rig.run()


@gated
@pytest.mark.parametrize(
    ("encoding", "says"),
    [
        ("LATIN1", r"LATIN1.*seqno 0, table public\.t.*encoding of the target's database lacks a character"),
        pytest.param("SQL_ASCII", r"too long.*SQL_ASCII, which counts bytes.*encoding UTF8", marks=pytest.mark.long),
    ],
)
def test_a_character_that_the_targets_encoding_lacks_is_told_as_one(rig: Rig, encoding: str, says: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(rig.target_dsn)["dbname"] + "_other"
    execute(rig.target_dsn, f"DROP DATABASE IF EXISTS {name}")
    execute(rig.target_dsn, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")
    target = psycopg.conninfo.make_conninfo(rig.target_dsn, dbname=name)
    other = Rig(config=rig.config, source_dsn=rig.source_dsn, target_dsn=target)
    try:
        other.both("CREATE TABLE t (id int PRIMARY KEY, v varchar(2))")
        execute(target, "ALTER TABLE t ADD CONSTRAINT fits CHECK (length(v) < 9)")
        other.prepare()
        other.write("INSERT INTO t VALUES (1, 'é'), (2, '€€')")
        with pytest.raises(FatalError, match=says):
            other.run()
    finally:
        execute(rig.target_dsn, f"DROP DATABASE {name} WITH (FORCE)")


@gated
def test_an_encoding_that_stores_a_character_as_another_one_is_refused(rig: Rig) -> None:
    """The server converts U+00A6 into EUC_JP and back as U+FFE4."""
    name = psycopg.conninfo.conninfo_to_dict(rig.target_dsn)["dbname"] + "_other"
    execute(rig.target_dsn, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'EUC_JP' LOCALE 'C'")
    try:
        other = replace(rig, target_dsn=psycopg.conninfo.make_conninfo(rig.target_dsn, dbname=name))
        other.both("CREATE TABLE t (id int PRIMARY KEY, v text)")
        with pytest.raises(FatalError, match=r"EUC_JP, which stores a broken bar .* Hint: Use .* encoding UTF8"):
            other.prepare()
    finally:
        execute(rig.target_dsn, f"DROP DATABASE {name} WITH (FORCE)")
