"""A target role without the right to session_replication_role: foreign keys are checked, and act, while changes are
applied. What they tie together shares a channel, and both sides are equal.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.config import DdlPolicy, PipelineConfig, Start, TablePatterns
from airflow_parallel_apply.pipeline.errors import PlanError, TargetError
from airflow_parallel_apply.pipeline.target.connect import open_target
from airflow_parallel_apply.router.plan import plan
from tests.support.rig import Rig, execute

ACTIONS = ("NO ACTION", "RESTRICT", "CASCADE", "SET NULL", "SET DEFAULT")


class PlainRig(Rig):
    """Applies as a role that has nothing but grants on the tables. `both` makes them as the owner."""

    def both(self, *statements: str) -> None:
        owner = psycopg.conninfo.make_conninfo(self.target_dsn, user="postgres")
        role = psycopg.conninfo.conninfo_to_dict(self.target_dsn)["user"]
        execute(self.source_dsn, *statements)
        execute(owner, *statements)
        execute(owner, f"GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA public TO {role}")


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Iterator[PlainRig]:
    role = f"plain_{uuid.uuid4().hex[:8]}"
    database = psycopg.conninfo.conninfo_to_dict(target_dsn)["dbname"]
    execute(target_dsn, f"CREATE ROLE {role} LOGIN", f"GRANT CREATE ON DATABASE {database} TO {role}")
    config = PipelineConfig(
        pipeline="p",
        log_url=str(tmp_path / "log"),
        start=Start.EMPTY,
        channels=8,
        lanes=2,
        tables=TablePatterns(include=("public.*",)),
        epoch_max_changes=40,
    )
    plain = psycopg.conninfo.make_conninfo(target_dsn, user=role)
    yield PlainRig(config=config, source_dsn=source_dsn, target_dsn=plain)
    execute(target_dsn, f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


def ties(rig: Rig) -> tuple[tuple[str, ...], ...]:
    target = open_target(rig.target, "p")
    try:
        return target.ties(rig.config.tables)
    finally:
        target.close()


def test_tables_tied_by_foreign_keys_are_found_and_nothing_is_tied_with_the_right(rig: PlainRig) -> None:
    rig.both(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a)",
        "CREATE TABLE c (id int PRIMARY KEY, b int REFERENCES b)",
        "CREATE TABLE alone (id int PRIMARY KEY)",
        "CREATE TABLE tree (id int PRIMARY KEY, up int REFERENCES tree)",
        "CREATE TABLE parts (id int PRIMARY KEY, a int) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE unkeyed (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE unkeyed_1 PARTITION OF unkeyed FOR VALUES FROM (0) TO (10)",
        "ALTER TABLE parts ADD FOREIGN KEY (a) REFERENCES a",
    )
    assert ties(rig) == (
        ("public.a", "public.b", "public.c", "public.parts", "public.parts_1"),
        ("public.tree",),
    )
    assert ties(rig.having(tables=TablePatterns(include=("public.b", "public.c")))) == (("public.b", "public.c"),)
    owner = psycopg.conninfo.make_conninfo(rig.target_dsn, user="postgres")
    assert ties(Rig(config=rig.config, source_dsn=rig.source_dsn, target_dsn=owner)) == ()


def random_family(rig: Rig, seed: int, transactions: int) -> None:
    """Transactions of random changes that the source's own constraints accept; what it refuses is rolled back there."""
    source = random.Random(seed)

    def statement() -> str:
        parent, child, other = (source.randint(1, 6) for _ in range(3))
        key = source.choice([str(parent), "NULL", "0"])
        return source.choice(
            [
                f"INSERT INTO parent VALUES ({parent}, 'p{source.random()}')",
                f"UPDATE parent SET v = 'q{source.random()}' WHERE id = {parent}",
                f"UPDATE parent SET id = {other} WHERE id = {parent}",
                f"DELETE FROM parent WHERE id = {parent}",
                f"INSERT INTO child VALUES ({child}, {key}, 'c')",
                f"INSERT INTO child VALUES ({child}, {parent}, 'c')",
                f"UPDATE child SET parent = {key}, v = 'd{source.random()}' WHERE id = {child}",
                f"UPDATE child SET id = {other} WHERE id = {child}",
                f"DELETE FROM child WHERE id = {child}",
                f"INSERT INTO grandchild VALUES ({parent}, {child}, 'g')",
                f"UPDATE grandchild SET v = 'h{source.random()}' WHERE child = {child}",
                f"DELETE FROM grandchild WHERE n = {parent}",
                f"INSERT INTO lonely VALUES ({source.randint(1, 10**6)}) ON CONFLICT DO NOTHING",
                "UPDATE lonely SET id = id + 1000000 WHERE id = (SELECT min(id) FROM lonely)",
            ]
        )

    with psycopg.connect(rig.source_dsn, autocommit=True) as connection:
        for _ in range(transactions):
            # A deferred constraint refuses the whole at its end.
            with suppress(psycopg.Error), connection.transaction():
                for _ in range(source.randint(1, 4)):
                    with suppress(psycopg.Error), connection.transaction():
                        connection.execute(statement())


@pytest.mark.parametrize(
    "deferrable",
    [pytest.param("", marks=pytest.mark.long), "DEFERRABLE INITIALLY DEFERRED"],
    ids=["immediate", "deferred"],
)
@pytest.mark.parametrize("on_update", ["NO ACTION", "CASCADE", "SET NULL"])
@pytest.mark.parametrize("on_delete", ACTIONS)
def test_random_parents_and_children_arrive_equal_in_eight_channels(
    rig: PlainRig, on_delete: str, on_update: str, deferrable: str
) -> None:
    rig.both(
        "CREATE TABLE parent (id int PRIMARY KEY, v text)",
        f"""CREATE TABLE child (id int PRIMARY KEY, parent int DEFAULT 0
            REFERENCES parent ON DELETE {on_delete} ON UPDATE {on_update} {deferrable}, v text)""",
        """CREATE TABLE grandchild (n int, child int REFERENCES child ON DELETE CASCADE ON UPDATE CASCADE, v text,
            PRIMARY KEY (child, n))""",
        "CREATE TABLE lonely (id int PRIMARY KEY)",
    )
    rig.prepare()
    rig.write("INSERT INTO parent VALUES (0, 'default')")
    random_family(rig, seed=len(on_delete) * 31 + len(on_update), transactions=150)
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


@pytest.mark.parametrize("action", ["NO ACTION DEFERRABLE", "CASCADE", "SET NULL"])
def test_a_tree_and_a_circle_of_tables_arrive_equal(rig: PlainRig, action: str) -> None:
    rig.both(
        f"CREATE TABLE tree (id int PRIMARY KEY, up int REFERENCES tree ON DELETE {action})",
        "CREATE TABLE one (id int PRIMARY KEY, other int)",
        f"CREATE TABLE two (id int PRIMARY KEY, other int REFERENCES one ON DELETE {action})",
        "ALTER TABLE one ADD FOREIGN KEY (other) REFERENCES two DEFERRABLE INITIALLY DEFERRED",
    )
    rig.prepare()
    for number in range(30):
        up = "NULL" if number < 3 else str(number // 3)
        rig.write(f"INSERT INTO tree VALUES ({number}, {up})")
    for number in range(10):
        rig.transaction(f"INSERT INTO one VALUES ({number}, {number})", f"INSERT INTO two VALUES ({number}, {number})")
    rig.transaction("UPDATE one SET other = 9 - id", "UPDATE two SET other = 9 - id")
    rig.transaction("UPDATE one SET other = NULL", "DELETE FROM two WHERE id < 5", "DELETE FROM one WHERE id = 7")
    rig.transaction("UPDATE tree SET up = NULL WHERE id % 5 = 0", "DELETE FROM tree WHERE id > 20")
    rig.run()
    assert rig.comparison().equal


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


def test_a_new_foreign_key_is_another_routing(rig: PlainRig) -> None:
    rig.both("CREATE TABLE parent (id int PRIMARY KEY)", "CREATE TABLE child (id int PRIMARY KEY, parent int)")
    rig.prepare()
    rig.write(
        "INSERT INTO parent SELECT generate_series(1, 20)",
        "INSERT INTO child SELECT n, n FROM generate_series(1, 20) n",
    )
    rig.run()
    rig.both("ALTER TABLE child ADD FOREIGN KEY (parent) REFERENCES parent ON DELETE CASCADE")
    rig.write("DELETE FROM parent WHERE id < 10", "INSERT INTO parent VALUES (99)", "INSERT INTO child VALUES (99, 99)")
    rig.run()
    assert rig.comparison().equal
    rig.both("ALTER TABLE child DROP CONSTRAINT child_parent_fkey")
    execute(rig.target_dsn, "UPDATE parallel_apply.position SET seqno = seqno - 1 WHERE channel = 2")
    with pytest.raises(PlanError, match="the routing changed"):
        rig.prepare()


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


def test_a_critical_transaction_whose_sets_are_refused_is_replayed(rig: PlainRig) -> None:
    rig.both(
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent ON UPDATE CASCADE)",
        "CREATE TABLE emptied (id int)",
    )
    rig.prepare()
    rig.write("INSERT INTO parent SELECT generate_series(1, 400)")
    rig.write("INSERT INTO child SELECT n, n FROM generate_series(1, 400) n")
    rig.transaction("TRUNCATE emptied", "UPDATE parent SET id = id + 1000")
    rig.run()
    assert rig.comparison().equal


def test_truncates_among_transactions_whose_checks_wait_for_the_end_of_them_all(rig: PlainRig) -> None:
    """Dense fences make one transaction of several."""
    rig.both(
        "CREATE TABLE parent (id integer PRIMARY KEY)",
        "CREATE TABLE child (id integer PRIMARY KEY, parent integer REFERENCES parent DEFERRABLE INITIALLY DEFERRED)",
    )
    rig.prepare()
    for step in range(4):
        rig.transaction(f"INSERT INTO child VALUES ({step}, {step})", f"INSERT INTO parent VALUES ({step})")
        rig.write("TRUNCATE child", f"INSERT INTO child VALUES ({step}, {step})")
    rig.run()
    assert rig.comparison().equal


@pytest.mark.parametrize("rows", [3, 600])
@pytest.mark.parametrize("change", ["truncate", "message", "columns"])
def test_a_table_that_a_transaction_wrote_is_truncated_or_altered_by_it(rig: PlainRig, change: str, rows: int) -> None:
    """The source checks at once; the target puts it off, and the server alters no table with checks pending."""
    rig.both(
        "CREATE TABLE parent (id integer PRIMARY KEY)",
        "CREATE TABLE child (id integer PRIMARY KEY, parent integer REFERENCES parent DEFERRABLE)",
    )
    role = psycopg.conninfo.conninfo_to_dict(rig.target_dsn)["user"]
    execute(psycopg.conninfo.make_conninfo(rig.target_dsn, user="postgres"), f"ALTER TABLE child OWNER TO {role}")
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.prepare()
    rig.write(f"INSERT INTO parent SELECT generate_series(1, {rows})")
    definition = "ALTER TABLE public.child ADD COLUMN note text"
    statements = {
        "truncate": ["TRUNCATE child"],
        "message": [f"SELECT pg_logical_emit_message(true, 'parallel_apply.ddl', '{definition}')", definition],
        "columns": [definition],
    }[change]
    rig.transaction(
        f"INSERT INTO child SELECT n, n FROM generate_series(1, {rows}) n",
        *statements,
        f"INSERT INTO child (id, parent) SELECT n + 10000, n FROM generate_series(1, {rows}) n",
    )
    rig.run()
    assert rig.comparison().equal


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


def test_a_check_that_the_source_had_put_off_does_not_stop_a_truncate_of_another_table(rig: PlainRig) -> None:
    rig.both(
        "CREATE TABLE parent (id integer PRIMARY KEY)",
        "CREATE TABLE child (id integer PRIMARY KEY, parent integer REFERENCES parent DEFERRABLE INITIALLY DEFERRED)",
        "CREATE TABLE other (id integer PRIMARY KEY)",
    )
    rig.prepare()
    rig.transaction("INSERT INTO child VALUES (1, 1)", "TRUNCATE other", "INSERT INTO parent VALUES (1)")
    rig.run()
    assert rig.comparison().equal


@pytest.mark.parametrize("channels", [pytest.param(1, marks=pytest.mark.long), 8])
@pytest.mark.parametrize("action", ["CASCADE", "SET NULL"])
@pytest.mark.parametrize("key", ["PRIMARY KEY", ""])
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


def test_a_rule_that_turns_rows_away_is_an_error_that_says_so(rig: PlainRig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)")
    owner = psycopg.conninfo.make_conninfo(rig.target_dsn, user="postgres")
    execute(owner, "CREATE RULE quiet AS ON INSERT TO t DO INSTEAD NOTHING")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1)")
    with pytest.raises(TargetError, match="of 1 rows to insert the target took 0"):
        rig.run()
    execute(owner, "DROP RULE quiet ON t")
    rig.run()
    assert rig.comparison().equal


def test_another_identity_that_only_a_deletion_would_bring_is_an_error_that_says_what_to_do(rig: PlainRig) -> None:
    rig.both(
        "CREATE TABLE parent (id int PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY, v text)",
        "CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent ON DELETE CASCADE)",
        "CREATE TABLE emptied (id int)",
    )
    rig.prepare()
    rig.write("INSERT INTO parent (id) SELECT generate_series(1, 20)", "INSERT INTO child SELECT n, n FROM parent")
    rig.write("UPDATE parent SET v = 'merged'")
    rig.transaction("TRUNCATE emptied", "UPDATE parent SET v = 'replayed' WHERE id < 5")
    rig.run()
    assert rig.comparison().equal
    rig.write("UPDATE parent SET n = DEFAULT WHERE id = 3")
    with pytest.raises(TargetError, match=r"(?s)GENERATED ALWAYS.*BY DEFAULT"):
        rig.run()
    owner = psycopg.conninfo.make_conninfo(rig.target_dsn, user="postgres")
    execute(owner, "ALTER TABLE parent ALTER n SET GENERATED BY DEFAULT")
    rig.run()
    assert rig.comparison().equal


@pytest.mark.parametrize("action", ["CASCADE", "SET NULL", "SET DEFAULT"])
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
