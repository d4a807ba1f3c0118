"""Copies by a role that may not set `session_replication_role`: the target's foreign keys and triggers act."""

from __future__ import annotations

from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from airflow_parallel_apply.pipeline.copy.postgres.recopy import Recopy
from airflow_parallel_apply.pipeline.errors import ConfigurationError, FatalError
from tests.integration.copy.recopying import again, require_green_and_equal
from tests.support.plain_rig import plain_rig
from tests.support.rig import execute
from tests.support.variants import GATED, gated


@gated
def test_without_the_right_to_be_a_replica_tables_with_foreign_keys_are_refused_before_anything_changes(
    source_dsn: str, target_dsn: str, tmp_path: Path
) -> None:
    with plain_rig(source_dsn, target_dsn, tmp_path) as rig:
        rig.both("CREATE TABLE t (id integer PRIMARY KEY)", "CREATE TABLE u (id integer PRIMARY KEY REFERENCES t)")
        rig.prepare()
        rig.write("INSERT INTO t VALUES (1)", "INSERT INTO u VALUES (1)")
        rig.run()
        with pytest.raises(ConfigurationError, match="foreign keys") as refused:
            again(rig, "t")
        assert "session_replication_role" in (refused.value.hint or "")
        rig.write("INSERT INTO t VALUES (2)")
        require_green_and_equal(rig)


@pytest.mark.parametrize("moment", [pytest.param("before", marks=GATED), "meanwhile"])
def test_without_that_right_no_foreign_key_to_one_partition_acts_on_what_a_copy_removes(
    source_dsn: str, target_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    with plain_rig(source_dsn, target_dsn, tmp_path) as rig:
        rig.both(
            "CREATE TABLE t (id integer PRIMARY KEY) PARTITION BY RANGE (id)",
            "CREATE TABLE t_1 PARTITION OF t DEFAULT",
            "CREATE TABLE u (id integer PRIMARY KEY)",
        )
        rig.prepare()
        rig.write("INSERT INTO t VALUES (1)", "INSERT INTO u VALUES (1)")
        rig.run()
        owner = make_conninfo(rig.target_dsn, user="postgres")
        key = "ALTER TABLE u ADD CONSTRAINT k FOREIGN KEY (id) REFERENCES t_1 ON DELETE CASCADE"
        keep = Recopy.keep_runs_out

        def keeping(recopy: Recopy) -> None:
            keep(recopy)
            execute(owner, key)

        if moment == "before":
            execute(owner, key)
        else:
            monkeypatch.setattr(Recopy, "keep_runs_out", keeping)
        with pytest.raises(FatalError, match="foreign key") as refused:
            again(rig, "t")
        assert "GRANT SET ON PARAMETER session_replication_role" in (refused.value.hint or "")
        execute(owner, "ALTER TABLE u DROP CONSTRAINT k")
        rig.write("INSERT INTO t VALUES (2)")
        require_green_and_equal(rig)


@gated
@pytest.mark.parametrize(("event", "body"), [("INSERT", "DELETE FROM child"), ("TRUNCATE", "UPDATE child SET v = 1")])
def test_without_that_right_a_trigger_that_changes_rows_which_a_foreign_key_may_change_is_named(
    source_dsn: str, target_dsn: str, tmp_path: Path, event: str, body: str
) -> None:
    with plain_rig(source_dsn, target_dsn, tmp_path) as rig:
        rig.both(
            "CREATE TABLE t (id integer PRIMARY KEY)",
            "CREATE TABLE parent (id integer PRIMARY KEY)",
            "CREATE TABLE child (id integer PRIMARY KEY REFERENCES parent ON DELETE CASCADE, v integer)",
        )
        rig.prepare()
        rig.write(*(f"INSERT INTO {table} VALUES (1)" for table in ("t", "parent", "child")))
        rig.run()
        execute(
            make_conninfo(rig.target_dsn, user="postgres"),
            f"CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {body}; RETURN NULL; END$$",
            f"CREATE TRIGGER act AFTER {event} ON t EXECUTE FUNCTION act()",
        )
        with pytest.raises(FatalError, match=r"the trigger act of t changes what is applied"):
            again(rig, "t")
        require_green_and_equal(rig)
