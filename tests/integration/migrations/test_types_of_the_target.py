"""A column that has another type at the target, and gets a new one at the source: the target has nothing to cast."""

from __future__ import annotations

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import FatalError
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.target.postgres.redefine.told_types import void_types
from tests.support.ddl_messages import ddl, install
from tests.support.migrated_table import recopied
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated, variants

TYPES = {
    "blanks": ("char(5)", "text", "varchar(9)", "'ab'"),
    "digits": ("real", "double precision", "double precision", "0.1"),
    "words": ("boolean", "varchar(9)", "text", "true"),
    "settings": ("timestamptz", "text", "text", "'2026-01-01 11:00+00'"),
    "domain": ("code", "text", "text", "'ab'"),
}
"""The source's type, the target's, the source's new one, and a value. The target has no type `code`."""


def begun(rig: Rig, types: str) -> tuple[Rig, str, str]:
    old, here, new, value = TYPES[types]
    install(rig.source_dsn)
    table = f"CREATE TABLE t (id integer PRIMARY KEY, c {old})"
    execute(rig.source_dsn, "CREATE DOMAIN code AS char(5)", table)
    execute(rig.target_dsn, f"CREATE TABLE t (id integer PRIMARY KEY, c {here})")
    rig.prepare()
    rig.write(f"INSERT INTO t VALUES (1, {value}), (2, NULL)")
    rig.run()
    return rig, new, value


def assert_same_texts(rig: Rig) -> None:
    query = "SELECT id, concat(c) FROM t ORDER BY id"
    assert rig.rows(query) == rig.rows(query, side="source")


@pytest.mark.parametrize("types", variants(TYPES, seldom=["digits"], gated=["words", "domain", "blanks"]))
def test_older_values_that_nothing_cast_are_copied(rig: Rig, types: str) -> None:
    rig, new, value = begun(rig, types)
    alter = f"ALTER TABLE t ALTER c TYPE {new}"
    rig.write("SET timezone = 'Europe/Berlin'", alter, f"INSERT INTO t VALUES (3, {value})")
    with pytest.raises(FatalError, match=r"column c of public\.t became(?s:.*)recopy"):
        rig.run()
    recopied(rig).run()
    assert_same_texts(rig)


@pytest.mark.parametrize("policy", [DdlPolicy.SKIP, pytest.param(DdlPolicy.APPLY, marks=GATED)])
def test_what_the_transaction_wrote_before_that_is_copied_whatever_is_taken_as_done(
    rig: Rig, policy: DdlPolicy
) -> None:
    rig, new, value = begun(rig, "blanks")
    rig.transaction(
        "DELETE FROM t",
        f"INSERT INTO t VALUES (3, {value}), (4, {value})",
        f"ALTER TABLE t ALTER c TYPE {new}",
        f"INSERT INTO t VALUES (5, {value})",
    )
    with pytest.raises(FatalError, match=r"column c of public\.t became(?s:.*)recopy"):
        rig.having(ddl=policy).run()
    recopied(rig).run()
    assert_same_texts(rig)


@gated
def test_a_message_casts_none_of_them(rig: Rig) -> None:
    rig, new, value = begun(rig, "blanks")
    alter = f"ALTER TABLE t ALTER c TYPE {new}"
    rig.transaction(alter, ddl(alter), f"INSERT INTO t VALUES (3, {value})")
    with pytest.raises(FatalError, match=r"column c of public\.t became"):
        rig.run()


@gated
def test_a_message_behind_one_that_renames_the_table_casts_none_of_them(rig: Rig) -> None:
    rig, new, value = begun(rig, "blanks")
    rename, alter = "ALTER TABLE t RENAME TO u", f"ALTER TABLE u ALTER c TYPE {new}"
    rig.transaction(rename, ddl(rename), alter, ddl(alter), f"INSERT INTO u VALUES (3, {value})")
    with pytest.raises(FatalError, match=r"column c of public\.u became"):
        rig.run()


@gated
def test_those_of_a_copy_are_the_source_s(rig: Rig) -> None:
    rig, new, _ = begun(rig, "blanks")
    rig.write(f"ALTER TABLE t ALTER c TYPE {new}", "INSERT INTO t VALUES (3, 'cd  ')")
    rig = recopied(rig)
    rig.write("INSERT INTO t VALUES (4, 'ef  ')")
    rig.run()
    assert_same_texts(rig)


@pytest.mark.parametrize("is_apart", [True, pytest.param(False, marks=GATED)])
def test_a_message_casts_no_row_that_comes_behind_it_under_the_former_type(rig: Rig, is_apart: bool) -> None:
    install(rig.source_dsn)
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, c char(5))")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'ab')")
    alter = "ALTER TABLE t ALTER c TYPE text"
    statements = [ddl(alter), "INSERT INTO t VALUES (2, 'ab')", alter, "INSERT INTO t VALUES (3, 'ab')"]
    if is_apart:
        rig.write(*statements[:2])
        rig.run()
        rig.write(*statements[2:])
    else:
        rig.transaction(*statements)
    with pytest.raises(FatalError, match=r"column c of public\.t became(?s:.*)recopy"):
        rig.run()
    if is_apart:
        recopied(rig).run()
        assert_same_texts(rig)


@gated
def test_a_message_casts_no_row_of_a_copy_that_comes_behind_it_under_the_former_type(rig: Rig) -> None:
    install(rig.source_dsn)
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, c char(5))")
    rig.prepare()
    alter = "ALTER TABLE t ALTER c TYPE text"
    rig.write("INSERT INTO t VALUES (1, 'ab')", ddl(alter))
    rig.run()
    recopied(rig)
    rig.write(alter, "INSERT INTO t VALUES (2, 'ab')")
    with pytest.raises(FatalError, match=r"column c of public\.t became(?s:.*)recopy"):
        rig.run()
    recopied(rig).run()
    assert_same_texts(rig)


def test_channels_do_not_wait_for_each_other_to_void_what_a_message_told(rig: Rig) -> None:
    install(rig.source_dsn)
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, c char(5))")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'ab')", ddl("ALTER TABLE t ALTER c TYPE text"))
    rig.run()
    relation = open_reader(rig.config.log_url).state().relations[-1]
    with psycopg.connect(rig.target_dsn) as one, psycopg.connect(rig.target_dsn) as other:
        other.execute("SET lock_timeout = '1s'")
        for connection in (one, other):
            void_types(connection, [relation], pipeline="p")
    assert rig.rows("SELECT count(*) FROM parallel_apply.told_type") == [(0,)]


RETYPE = "ALTER TABLE t ALTER c TYPE timestamptz USING c AT TIME ZONE 'UTC'"
FOLLOWED = {
    "a rename beside it": ("CREATE TABLE t (id integer PRIMARY KEY, c timestamp)", "ALTER TABLE t RENAME TO u"),
    "a table that messages made": ("CREATE TABLE other (id integer)", ""),
}


@pytest.mark.parametrize("messages", variants(FOLLOWED, gated=["a table that messages made"]))
def test_messages_that_did_all_of_it_are_followed(rig: Rig, messages: str) -> None:
    table, rename = FOLLOWED[messages]
    install(rig.source_dsn)
    rig.both(table)
    rig.prepare()
    rig.run()
    create = "CREATE TABLE t (id integer PRIMARY KEY, c timestamp)"
    if not rename:
        rig.transaction(create, ddl(create))
        rig.prepare()
    rig.write("INSERT INTO t VALUES (1, '2026-01-01 10:00')")
    if rename:
        rig.run()
    sent = [RETYPE, rename] if rename else [RETYPE]
    rig.transaction(*(text for one in sent for text in (one, ddl(one))))
    if rename:
        rig.run()
    rig.write(f"INSERT INTO {'u' if rename else 't'} VALUES (2, '2026-01-01 10:00')")
    rig.run()
    assert rig.comparison().equal


USINGS = {
    "numbers": ("real", "double precision", "g::text::double precision", "0.1"),
    "texts": ("varchar(5)", "text", "'prefix-' || g", "'ab'"),
}


@pytest.mark.parametrize("using", variants(USINGS, gated=["texts"]))
def test_what_a_sent_using_has_made_stays(rig: Rig, using: str) -> None:
    old, new, expression, value = USINGS[using]
    install(rig.source_dsn)
    rig.both(f"CREATE TABLE t (id integer PRIMARY KEY, g {old})")
    rig.prepare()
    rig.write(f"INSERT INTO t VALUES (1, {value}), (2, NULL)")
    rig.run()
    alter = f"ALTER TABLE t ALTER g TYPE {new} USING {expression}"
    index = "CREATE INDEX ON t (g)"
    rig.transaction(alter, ddl(alter), index, ddl(index))
    rig.run()
    rig.write(f"INSERT INTO t VALUES (3, {value})")
    rig.run()
    query = "SELECT id, concat(g) FROM t ORDER BY id"
    assert rig.rows(query) == rig.rows(query, side="source")
