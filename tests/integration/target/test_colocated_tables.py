"""A target role without the right to session_replication_role: foreign keys are checked, and act, while changes are
applied. What they tie together shares a channel, and both sides are equal.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy, TablePatterns
from airflow_parallel_apply.pipeline.errors import PlanError, TargetError
from airflow_parallel_apply.pipeline.target.open import open_target
from tests.support.plain_rig import PlainRig, plain_rig
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated, variants

ACTIONS = ("NO ACTION", "RESTRICT", "CASCADE", "SET NULL", "SET DEFAULT")
OFTEN = {"CASCADE": "SET NULL"}
"""The actions of a key's change that `make test` combines with those of a deletion."""


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Iterator[PlainRig]:
    with plain_rig(source_dsn, target_dsn, tmp_path) as found:
        yield found


def colocation(rig: Rig) -> tuple[tuple[str, ...], ...]:
    target = open_target(rig.target, "p")
    try:
        return target.colocation(rig.config.tables)
    finally:
        target.close()


def test_tables_with_foreign_keys_are_colocated_and_none_is_with_the_right(rig: PlainRig) -> None:
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
    assert colocation(rig) == (
        ("public.a", "public.b", "public.c", "public.parts", "public.parts_1"),
        ("public.tree",),
    )
    assert colocation(rig.having(tables=TablePatterns(include=("public.b", "public.c")))) == (("public.b", "public.c"),)
    owner = psycopg.conninfo.make_conninfo(rig.target_dsn, user="postgres")
    assert colocation(Rig(config=rig.config, source_dsn=rig.source_dsn, target_dsn=owner)) == ()


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
@pytest.mark.parametrize(
    ("on_delete", "on_update"),
    [
        pytest.param(deleted, updated, marks=() if OFTEN.get(deleted) == updated else pytest.mark.long)
        for deleted in ACTIONS
        for updated in ("NO ACTION", "CASCADE", "SET NULL")
    ],
)
def test_random_parents_and_children_arrive_equal_in_several_channels(
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


@gated
@pytest.mark.parametrize(
    "action", variants(["NO ACTION DEFERRABLE", "CASCADE", "SET NULL"], seldom=["NO ACTION DEFERRABLE", "SET NULL"])
)
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


@gated
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
    rig.prepare()
    routing = "SELECT routing -> 'ties' FROM parallel_apply.pipeline"
    assert rig.rows(routing) == [([["public.child", "public.parent"]],)], "until all channels stand at the same place"
    with pytest.raises(PlanError, match="the routing changed"):
        rig.having(channels=2).prepare()
    execute(rig.target_dsn, "UPDATE parallel_apply.position SET seqno = seqno + 1 WHERE channel = 2")
    rig.prepare()
    assert rig.rows(routing) == [([],)]


@gated
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


@gated
def test_truncates_among_transactions_whose_checks_wait_for_the_end_of_them_all(rig: PlainRig) -> None:
    """Dense barriers make one transaction of several."""
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


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        ("truncate", 600),
        pytest.param("message", 3, marks=GATED),
        *(
            pytest.param(*one, marks=pytest.mark.long)
            for one in (("truncate", 3), ("message", 600), ("columns", 3), ("columns", 600))
        ),
    ],
)
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
        "message": [rig.ddl(definition), definition],
        "columns": [definition],
    }[change]
    rig.transaction(
        f"INSERT INTO child SELECT n, n FROM generate_series(1, {rows}) n",
        *statements,
        f"INSERT INTO child (id, parent) SELECT n + 10000, n FROM generate_series(1, {rows}) n",
    )
    rig.run()
    assert rig.comparison().equal


@gated
def test_a_truncate_that_restarts_sequences_of_another_owner_leaves_them_as_they_are(rig: PlainRig) -> None:
    rig.both("CREATE TABLE counted (id integer GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY)")
    rig.prepare()
    rig.write(
        "INSERT INTO counted DEFAULT VALUES", "TRUNCATE counted RESTART IDENTITY", "INSERT INTO counted VALUES (7)"
    )
    rig.run()
    assert rig.rows("SELECT id FROM counted") == [(7,)]


@gated
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


@gated
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


@gated
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
    with pytest.raises(TargetError, match=r"(?s)GENERATED ALWAYS.*BY DEFAULT") as caught:
        rig.run()
    owner = psycopg.conninfo.make_conninfo(rig.target_dsn, user="postgres")
    execute(owner, str(caught.value).partition("Run ")[2].partition(" at the target")[0])
    rig.run()
    assert rig.comparison().equal
