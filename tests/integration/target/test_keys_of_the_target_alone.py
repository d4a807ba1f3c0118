"""Foreign keys that act at the target alone, and triggers of their children: what they do, the source did not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from airflow_parallel_apply.pipeline.check.check import check_pipeline
from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.errors import FatalError
from airflow_parallel_apply.pipeline.model.finding import errors
from tests.support.plain_rig import PlainRig, plain_rig
from tests.support.rig import execute
from tests.support.variants import gated, variants

_ADD = 'ALTER TABLE child ADD CONSTRAINT "To parent" FOREIGN KEY (parent) REFERENCES parent {}'
_FILL = "INSERT INTO child SELECT i, i FROM generate_series(1, 5) i"
WAYS = {
    "merged": (),
    # A truncation and the rows behind it are replayed, one after the other.
    "replayed": ("TRUNCATE child", _FILL),
}


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Iterator[PlainRig]:
    with plain_rig(source_dsn, target_dsn, tmp_path) as found:
        yield found


def as_owner(rig: PlainRig, *statements: str) -> None:
    execute(psycopg.conninfo.make_conninfo(rig.target_dsn, user="postgres"), *statements)


def begin(rig: PlainRig) -> None:
    rig.both("CREATE TABLE parent (id int PRIMARY KEY, v int)", "CREATE TABLE child (id int PRIMARY KEY, parent int)")
    rig.prepare()
    rig.write("INSERT INTO parent SELECT i, i FROM generate_series(1, 5) i", _FILL)
    rig.run()


@gated
@pytest.mark.parametrize(
    "action",
    variants(
        ["ON DELETE CASCADE", "ON DELETE SET NULL", "ON DELETE SET NULL (parent)"],
        seldom=["ON DELETE CASCADE", "ON DELETE SET NULL"],
    ),
)
def test_a_key_that_acts_at_the_target_alone_stops_the_next_run(rig: PlainRig, action: str) -> None:
    begin(rig)
    rig.write(_ADD.format("ON UPDATE CASCADE"), "DELETE FROM child WHERE id = 3")
    as_owner(rig, _ADD.format(action))
    rig.write("DELETE FROM parent WHERE id = 3")
    (finding,) = errors(check_pipeline(rig.config, rig.source, rig.target).findings)
    with pytest.raises(FatalError, match=r"has the foreign key To parent to public\.parent with ON DELETE"):
        rig.run()
    as_owner(rig, *finding.fix)
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_key_that_acts_at_both_or_at_the_source_alone_is_followed(rig: PlainRig) -> None:
    begin(rig)
    rig.write(_ADD.format("ON UPDATE CASCADE ON DELETE SET NULL"))
    as_owner(rig, _ADD.format("ON DELETE SET NULL"))
    assert errors(check_pipeline(rig.config, rig.source, rig.target).findings) == ()
    rig.write("DELETE FROM parent WHERE id = 3", "INSERT INTO child VALUES (9, 4)")
    rig.run()
    assert rig.comparison().equal


@gated
@pytest.mark.parametrize("way", variants(WAYS, seldom=["replayed"]))
def test_rows_that_the_targets_own_key_deletes_alone_are_counted(rig: PlainRig, way: str) -> None:
    begin(rig)
    rig.transaction(*WAYS[way], "DELETE FROM parent WHERE id = 3")
    rig.capture("r")
    opened = rig.open("r")
    as_owner(rig, _ADD.format("ON DELETE CASCADE"))
    told = r"foreign keys of the target changed rows of public\.child.*To parent.*Run (ALTER TABLE .*?) at the target"
    with pytest.raises(FatalError, match=told) as caught:
        rig.close(opened, rig.apply(opened))
    found = re.search(told, str(caught.value))
    assert found is not None
    assert found[1] == 'ALTER TABLE public.child DROP CONSTRAINT "To parent"'
    as_owner(rig, found[1])
    if way == "merged":
        # The channels stand at different places, and these tables belong together now.
        as_owner(rig, "ALTER TABLE parent ADD CONSTRAINT other FOREIGN KEY (v) REFERENCES child")
    rig.run()
    assert rig.comparison().equal
    rig.write("INSERT INTO child VALUES (77, 1)", "INSERT INTO parent VALUES (78, 77)")
    rig.run()
    assert rig.comparison().equal


@gated
@pytest.mark.parametrize("action", variants(["CASCADE", "SET NULL"], seldom=["SET NULL"]))
def test_rows_that_another_pipeline_brings_are_left_alone_by_keys(rig: PlainRig, tmp_path: Path, action: str) -> None:
    """It may be ahead, and bring them no more."""
    other = rig.having(pipeline="q", log_url=str(tmp_path / "other"), tables=TablePatterns(include=("public.child",)))
    rig = rig.having(tables=TablePatterns(include=("public.parent",)))
    rig.both(
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (id int PRIMARY KEY, parent int)",
        _ADD.format(f"ON DELETE {action}"),
    )
    for changes in ((), ("INSERT INTO parent VALUES (3)", "INSERT INTO child VALUES (3, 3)")):
        rig.write(*changes)
        rig.run()
        other.run()
    rig.write("DELETE FROM parent")
    ((between,),) = rig.rows("SELECT pg_current_wal_lsn()", side="source")
    rig.write("DELETE FROM child", "INSERT INTO parent VALUES (3)", "INSERT INTO child VALUES (3, 3)")
    other.run()
    told = r"foreign keys of the target changed rows of public\.child that pipeline q brings: To parent.*Run (.*?) at"
    with pytest.raises(FatalError, match=told) as caught:
        rig.run(until=between)
    found = re.search(told, str(caught.value))
    assert found is not None
    as_owner(rig, found[1])
    rig.run()
    for pipeline in (rig, other):
        assert pipeline.comparison().equal


@gated
@pytest.mark.parametrize(
    ("what", "way"),
    [
        pytest.param("DELETE FROM child WHERE id = 5", "merged", marks=pytest.mark.long),
        ("INSERT INTO child VALUES (99, 1)", "replayed"),
        pytest.param("DELETE FROM child WHERE id = 5", "replayed", marks=pytest.mark.long),
        pytest.param("INSERT INTO child VALUES (99, 1)", "merged", marks=pytest.mark.long),
    ],
)
def test_rows_that_a_trigger_of_such_a_child_writes_are_counted(rig: PlainRig, what: str, way: str) -> None:
    begin(rig)
    rig.write(_ADD.format("ON DELETE CASCADE"))
    as_owner(
        rig,
        _ADD.format("ON DELETE CASCADE"),
        f"CREATE FUNCTION beside() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {what}; RETURN NULL; END$$",
        "CREATE TRIGGER beside AFTER DELETE ON child FOR EACH ROW WHEN (OLD.id = 3) EXECUTE FUNCTION beside()",
    )
    rig.transaction(*WAYS[way], "DELETE FROM parent WHERE id = 3")
    with pytest.raises(FatalError, match=r"the trigger beside of public\.child|the trigger beside of child"):
        rig.run()
    as_owner(rig, "ALTER TABLE child DISABLE TRIGGER beside")
    rig.run()
    assert rig.comparison().equal
