"""A table whose older rows a person vouches for: that table, and nothing else that was altered or sent."""

from __future__ import annotations

import re

import pytest

from airflow_parallel_apply.pipeline.capture.adoption import vouch_for
from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import ConfigurationError, FatalError
from tests.hunt.commands import invoked
from tests.support.rig import Rig
from tests.support.variants import gated

_RENAME = "ALTER TYPE public.mood RENAME VALUE 'sad' TO 'blue'"
_COMMAND = re.compile(r"`(parallel-apply vouch [^`]+)` instead")


@pytest.fixture(name="rig")
def rig_with_rows(rig: Rig) -> Rig:
    rig.both(
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TABLE t (id integer PRIMARY KEY, a integer)",
        "CREATE TABLE u (id integer PRIMARY KEY, a integer, m mood)",
    )
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 1)", "INSERT INTO u VALUES (1, 1, 'sad')")
    rig.run()
    return rig


def refused(rig: Rig) -> str:
    with pytest.raises(FatalError) as caught:
        rig.run()
    return str(caught.value)


def follow(rig: Rig, told: str) -> None:
    found = _COMMAND.search(told)
    assert found is not None, told
    result = invoked(rig, found.group(1))
    assert result.exit_code == 0, result.output


@gated
def test_what_was_sent_of_other_tables_is_done(rig: Rig) -> None:
    send = rig.ddl(_RENAME)
    rig.write(*(f"DROP EVENT TRIGGER parallel_apply_capture_{name}" for name in ("ddl", "rewrite")))
    rig.write("ALTER TABLE t ALTER a TYPE bigint", "INSERT INTO t VALUES (2, 2)")
    rig.transaction(_RENAME, send)
    told = refused(rig)
    assert "t was rewritten while a changed" in told
    follow(rig, told)
    rig.run()
    assert rig.rows("SELECT m FROM u") == [("blue",)]
    assert rig.comparison().equal


@gated
def test_another_table_stays_in_doubt(rig: Rig) -> None:
    rig.write("ALTER TABLE t ALTER a TYPE bigint", "INSERT INTO t VALUES (2, 2)")
    told = refused(rig)
    rig.write("ALTER TABLE u ALTER a TYPE bigint USING a * 2", "INSERT INTO u VALUES (2, 2, 'ok')")
    follow(rig, told)
    told = refused(rig)
    assert "public.u was rewritten while a changed" in told
    assert "public.t" not in told


def test_a_table_to_which_two_things_were_done_is_vouched_for_on_both_conditions(rig: Rig) -> None:
    rig.write(_RENAME, "ALTER TABLE u ALTER a TYPE bigint", "ALTER TABLE t ALTER a TYPE bigint")
    told = refused(rig)
    conditions = re.findall(r"Only where ([^:]*): `parallel-apply vouch --pipeline \S+ ([^`]*)` instead", told)
    assert [tables for _, tables in conditions] == ["--table public.t", "--table public.u"]
    assert "no row was written" not in conditions[0][0]
    assert re.match(r"there was no USING but .*, and no row was written .* neither an until nor", conditions[1][0])
    doubts = vouch_for(rig.source, rig.config, [("public", "u")])
    assert [re.findall(r"public\.u was rewritten|labels of an enum", doubt) for doubt in doubts] == [
        ["public.u was rewritten"],
        ["labels of an enum"],
    ]


@gated
@pytest.mark.parametrize(
    ("statements", "says"),
    [
        ((), r"nothing that was done to public\.t is in doubt"),
        (
            ("DROP TABLE t", "CREATE TABLE t (id integer PRIMARY KEY, a bigint)", "INSERT INTO t VALUES (2, 2)"),
            r"nobody can vouch for public\.t: public\.t was dropped and created again",
        ),
    ],
)
def test_it_is_refused_for_anything_else(rig: Rig, statements: tuple[str, ...], says: str) -> None:
    rig.write(*statements)
    with pytest.raises(ConfigurationError, match=says):
        vouch_for(rig.source, rig.config, [("public", "t")])


@gated
def test_labels_renamed_at_both_sides_are_vouched_for(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.REFUSE)
    rig.both(_RENAME)
    follow(rig, refused(rig))
    rig.write("INSERT INTO u VALUES (2, 2, 'blue')")
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_name_that_the_table_had_meanwhile_is_told_all_the_same(rig: Rig) -> None:
    rig.write(
        "ALTER TABLE t RENAME TO lent",
        "INSERT INTO lent VALUES (2, 2)",
        "ALTER TABLE lent RENAME TO t",
        "ALTER TABLE t ALTER a TYPE bigint",
    )
    follow(rig, refused(rig))
    rig.run()
    assert rig.comparison().equal
