"""The target's own foreign keys act where the role may not switch them off: nothing is missed or done twice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg
import pytest

from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.router.plan import plan
from tests.support.plain_rig import PlainRig, plain_rig
from tests.support.rig import Rig, execute
from tests.support.variants import gated, variants


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Iterator[PlainRig]:
    with plain_rig(source_dsn, target_dsn, tmp_path) as found:
        yield found


@gated
def test_a_child_that_somebody_else_deleted_is_an_error_that_names_it(rig: PlainRig) -> None:
    rig.both(
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent ON DELETE CASCADE)",
    )
    rig.prepare()
    rig.write("INSERT INTO parent VALUES (1)", "INSERT INTO child VALUES (7, 1)")
    rig.run()
    execute(rig.target_dsn, "DELETE FROM child")
    rig.write("DELETE FROM child WHERE id = 7")
    with pytest.raises(Exception, match="id=7"):
        rig.run()


@gated
def test_what_the_targets_own_cascades_have_done_is_not_missed_in_a_replay(rig: PlainRig) -> None:
    rig.both(
        "CREATE TABLE parent (id int PRIMARY KEY)",
        """CREATE TABLE child (parent int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE, n int, v text,
            PRIMARY KEY (parent, n))""",
        """CREATE TABLE grandchild (id int PRIMARY KEY, parent int, n int,
            FOREIGN KEY (parent, n) REFERENCES child ON DELETE CASCADE ON UPDATE CASCADE)""",
    )
    rig.prepare()
    rig.transaction(
        "INSERT INTO parent SELECT generate_series(1, 9)",
        "INSERT INTO child SELECT p, n, 'a' FROM generate_series(1, 9) p, generate_series(1, 3) n",
        "INSERT INTO grandchild SELECT p * 10 + n, p, n FROM generate_series(1, 9) p, generate_series(1, 3) n",
    )
    rig.run()
    # As sets these contradict each other: what is moved to 99 is deleted with 3 before it can be.
    rig.transaction("UPDATE parent SET id = 99 WHERE id = 3", "UPDATE child SET v = 'b' WHERE parent = 99 AND n = 1")
    rig.transaction("DELETE FROM parent WHERE id = 4", "UPDATE parent SET id = 4 WHERE id = 5")
    rig.transaction("DELETE FROM parent WHERE id = 99", "INSERT INTO parent VALUES (3)")
    rig.transaction("UPDATE child SET n = 7 WHERE parent = 6 AND n = 1", "DELETE FROM child WHERE parent = 7 AND n = 2")
    opened = open_everything(rig)
    reports = rig.apply(opened)
    assert sum(report["replayed_units"] for report in reports) >= 1
    assert rig.comparison().equal


def open_everything(rig: Rig) -> run.OpenedRun:
    rig.capture("watched")
    plan(rig.config, rig.target)
    return run.open_run(rig.config, rig.source, rig.target, owner="watched", run_id="watched")


def test_a_new_definition_in_between_does_not_forget_what_the_targets_cascades_have_done(rig: PlainRig) -> None:
    """The child's deletion is its first row under the definition, and the target has done it with the parent's."""
    rig.both(
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent ON DELETE CASCADE)",
    )
    rig.prepare()
    rig.write("INSERT INTO parent VALUES (1), (2)", "INSERT INTO child VALUES (1, 1), (2, 2)")
    rig.both("ALTER TABLE child ADD COLUMN v text")
    rig.write("DELETE FROM parent WHERE id = 1", "INSERT INTO child VALUES (3, 2, 'new')")
    rig.having(ddl=DdlPolicy.SKIP).run()
    assert rig.comparison().equal


@gated
@pytest.mark.parametrize("channels", [pytest.param(1, marks=pytest.mark.long), 8])
@pytest.mark.parametrize(
    ("key", "action"),
    [
        ("PRIMARY KEY", "CASCADE"),
        *(
            pytest.param(*one, marks=pytest.mark.long)
            for one in (("PRIMARY KEY", "SET NULL"), ("", "CASCADE"), ("", "SET NULL"))
        ),
    ],
)
def test_another_key_of_a_parent_that_is_referred_to_by_another_column_leaves_its_children_alone(
    rig: PlainRig, key: str, action: str, channels: int
) -> None:
    """A merge would delete and insert such a row, and the foreign key would act on that."""
    rig.both(
        f"CREATE TABLE parent (id integer {key}, mail text UNIQUE)",
        "ALTER TABLE parent REPLICA IDENTITY FULL",
        "CREATE TABLE child (id integer PRIMARY KEY, mail text REFERENCES parent (mail)"
        f" ON DELETE {action} ON UPDATE {action})",
    )
    rig = rig.having(channels=channels)
    rig.prepare()
    rig.write("INSERT INTO parent SELECT n, n FROM generate_series(1, 20) n")
    rig.write("INSERT INTO child SELECT n, n FROM generate_series(1, 20) n")
    rig.run()
    rig.write("UPDATE parent SET id = id + 100 WHERE id < 5", "INSERT INTO child VALUES (100)")
    rig.run()
    assert rig.comparison().equal
    # Each takes the key of the one before.
    rig.write(*(f"UPDATE parent SET id = {to} WHERE id = {at}" for at, to in ((12, 99), (11, 12), (10, 11))))
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_child_without_a_key_that_the_targets_own_keys_have_changed_is_not_missed(rig: PlainRig) -> None:
    rig.both(
        "CREATE TABLE parent (id integer PRIMARY KEY, mail text UNIQUE)",
        "CREATE TABLE child (n integer, mail text REFERENCES parent (mail) ON UPDATE CASCADE)",
        "ALTER TABLE child REPLICA IDENTITY FULL",
    )
    rig.prepare()
    rig.write("INSERT INTO parent SELECT n, n FROM generate_series(1, 9) n")
    rig.write("INSERT INTO child SELECT n % 4, n / 2 + 1 FROM generate_series(1, 12) n")
    rig.run()
    rig.write("UPDATE parent SET mail = mail || '!' WHERE id < 5", "DELETE FROM child WHERE n = 3")
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_child_that_one_reference_empties_before_the_other_deletes_it_is_not_missed(rig: PlainRig) -> None:
    rig.both(
        "CREATE TABLE parent (id integer PRIMARY KEY, mail text UNIQUE)",
        "CREATE TABLE child (id integer PRIMARY KEY, parent integer REFERENCES parent ON DELETE SET NULL,"
        " mail text REFERENCES parent (mail) ON DELETE CASCADE)",
    )
    rig.prepare()
    rig.write("INSERT INTO parent SELECT n, n FROM generate_series(1, 9) n")
    rig.write("INSERT INTO child SELECT n, n, n FROM generate_series(1, 9) n")
    rig.run()
    rig.write(
        "DELETE FROM parent WHERE id < 5", "UPDATE parent SET id = id + 10 WHERE id NOT IN (SELECT id FROM child)"
    )
    rig.run()
    assert rig.comparison().equal


@gated
@pytest.mark.parametrize("action", variants(["CASCADE", "SET NULL", "SET DEFAULT"], seldom=["SET NULL", "SET DEFAULT"]))
def test_rows_that_one_change_of_a_parent_reaches_on_two_ways(rig: PlainRig, action: str) -> None:
    """The source's log has each row in between, when one of its references has followed and the other one not yet."""
    rig.both(
        "CREATE TABLE a (id int PRIMARY KEY, code text UNIQUE)",
        "CREATE TABLE b (a int PRIMARY KEY REFERENCES a ON UPDATE CASCADE ON DELETE CASCADE)",
        f"CREATE TABLE c (id int PRIMARY KEY, a int REFERENCES a ON UPDATE CASCADE ON DELETE {action},"
        f" b int REFERENCES b ON UPDATE CASCADE ON DELETE {action}, other int REFERENCES a ON UPDATE CASCADE,"
        f" code text REFERENCES a (code) ON UPDATE {action} ON DELETE {action})",
        "CREATE TABLE d (a int REFERENCES a ON UPDATE CASCADE ON DELETE CASCADE, n int, other int REFERENCES a"
        f" ON UPDATE CASCADE ON DELETE {action}, PRIMARY KEY (a, n))",
        "CREATE TABLE pair (a int REFERENCES a ON UPDATE CASCADE ON DELETE CASCADE, b int REFERENCES a"
        " ON UPDATE CASCADE ON DELETE CASCADE, v text, PRIMARY KEY (a, b))",
    )
    rig.prepare()
    rig.write(
        "INSERT INTO a SELECT i, 'c' || i FROM generate_series(1, 20) i",
        "INSERT INTO b SELECT i FROM generate_series(1, 15) i",
        "INSERT INTO c SELECT i, i, i, CASE WHEN i < 5 THEN i END, 'c' || i FROM generate_series(1, 15) i",
        "INSERT INTO d SELECT 1 + i % 8, i, 1 + i % 8 FROM generate_series(1, 30) i",
        "INSERT INTO pair SELECT i, i FROM generate_series(1, 12) i",
        "UPDATE a SET id = id + 100, code = code || 'x' WHERE id < 9",
        "DELETE FROM a WHERE id BETWEEN 9 AND 12",
    )
    rig.transaction("UPDATE a SET id = id + 1000 WHERE id > 105", "UPDATE c SET code = 'c13', a = 13 WHERE id = 6")
    rig.run()
    assert rig.comparison().equal


_CUT: Final = (
    "CREATE TABLE parent (part integer, id integer, code integer, v text, PRIMARY KEY (part, id))"
    " PARTITION BY LIST (part)",
    "CREATE TABLE parent1 PARTITION OF parent FOR VALUES IN (1)",
    "CREATE TABLE parent2 PARTITION OF parent FOR VALUES IN (2)",
)


@gated
@pytest.mark.parametrize(
    "key",
    [
        "ALTER TABLE child ADD FOREIGN KEY (code) REFERENCES parent1 (code) ON DELETE CASCADE INITIALLY DEFERRED",
        "ALTER TABLE parent1 ADD FOREIGN KEY (code) REFERENCES child ON UPDATE SET NULL INITIALLY DEFERRED",
    ],
    ids=["to a partition", "of a partition"],
)
def test_a_foreign_key_that_acts_on_one_partition_is_refused(rig: PlainRig, key: str) -> None:
    """Both sides have it, and may have other rows in a partition of that name."""
    rig.both(*_CUT, "CREATE UNIQUE INDEX ON parent1 (code)", "CREATE TABLE child (code integer PRIMARY KEY)", key)
    rig.prepare()
    rig.transaction("INSERT INTO child VALUES (7)", "INSERT INTO parent VALUES (1, 1, 7), (2, 2, 7)")
    with pytest.raises(ParallelApplyError, match="acts on the rows of one partition") as refused:
        rig.run()
    fix = re.search(r"ALTER TABLE \S+ DROP CONSTRAINT [^,;.) ]+", str(refused.value))
    assert fix
    execute(psycopg.conninfo.make_conninfo(rig.target_dsn, user="postgres"), fix.group())
    rig.write("DELETE FROM parent WHERE id = 1")
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_row_that_comes_to_refer_to_another_partition_is_replayed(rig: PlainRig) -> None:
    """The server keeps a part of the foreign key for each partition that it refers to, which is no key of its own."""
    rig.both(
        *_CUT,
        "CREATE TABLE child (id integer PRIMARY KEY, part integer, parent integer, v text, FOREIGN KEY (part, parent)"
        " REFERENCES parent ON UPDATE CASCADE ON DELETE SET NULL)",
        "CREATE TABLE other (id integer PRIMARY KEY, mail text UNIQUE)",
        "CREATE TABLE reader (id integer PRIMARY KEY, mail text REFERENCES other (mail) ON DELETE SET NULL)",
    )
    rig.prepare()
    rig.write("INSERT INTO parent SELECT 1 + n % 2, n FROM generate_series(1, 9) n")
    rig.write("INSERT INTO child VALUES (4, 1, 4)", "INSERT INTO other VALUES (3, 'a')")
    rig.run()
    rig.transaction(
        # No merge does this.
        "UPDATE other SET id = 100",
        "UPDATE parent SET v = 'v' WHERE id = 4",
        "UPDATE child SET v = 'v'",
        "UPDATE child SET part = 2, parent = 5",
    )
    rig.run()
    assert rig.comparison().equal


@gated
def test_the_hint_about_a_foreign_key_of_one_partition_names_that(rig: PlainRig) -> None:
    owner = psycopg.conninfo.make_conninfo(rig.target_dsn, user="postgres")
    rig.both("CREATE TABLE top (id integer PRIMARY KEY)", *_CUT)
    rig.prepare()
    execute(owner, "ALTER TABLE parent1 ADD CONSTRAINT own FOREIGN KEY (code) REFERENCES top ON DELETE CASCADE")
    rig.write("INSERT INTO top VALUES (1)")
    with pytest.raises(ParallelApplyError) as refused:
        rig.run()
    found = re.search(r"ALTER TABLE \S+ DROP CONSTRAINT \S+?(?=\.? )", str(refused.value))
    assert found is not None, refused.value
    execute(owner, found.group())
    rig.run()
    assert rig.comparison().equal
