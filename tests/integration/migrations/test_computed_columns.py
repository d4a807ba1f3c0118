"""Columns that the source computes, stops computing, or computes otherwise."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.ddl_messages import ddl as ddl_message
from tests.support.ddl_messages import install
from tests.support.migrated_table import COMPUTED, PLAIN, ROWS, assert_equal, begin, recopied
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated, variants


@gated
@pytest.mark.parametrize("ddl", [pytest.param(DdlPolicy.APPLY, marks=pytest.mark.long), DdlPolicy.REFUSE])
def test_a_column_that_the_source_computes_no_more_takes_its_values_at_the_target(rig: Rig, ddl: DdlPolicy) -> None:
    begin(rig, COMPUTED)
    rig = rig.having(ddl=ddl)
    rig.write("ALTER TABLE t ALTER g DROP EXPRESSION", "UPDATE t SET g = 7 WHERE id < 9")
    if ddl is DdlPolicy.REFUSE:
        with pytest.raises(FatalError, match=r"column g of public\.t is not computed any more.*(?s:.*)DROP EXPRESSION"):
            rig.run()
        execute(rig.target_dsn, "ALTER TABLE t ALTER g DROP EXPRESSION")
    rig.run()
    assert_equal(rig)


@gated
def test_a_column_that_only_the_source_computes_stops_the_run_before_its_first_row(rig: Rig) -> None:
    execute(rig.source_dsn, COMPUTED)
    execute(rig.target_dsn, "CREATE TABLE t (id integer PRIMARY KEY, a text, b integer, g integer)")
    with pytest.raises(FatalError, match=r"t has the column g as an ordinary one"):
        rig.prepare()
    execute(rig.target_dsn, "ALTER TABLE t DROP g, ADD g integer GENERATED ALWAYS AS (b * 2) STORED")
    rig.prepare()
    execute(rig.target_dsn, "ALTER TABLE t DROP g, ADD g integer")
    rig.write(ROWS)
    with pytest.raises(FatalError, match=r"computes the column and does not send it.*column g"):
        rig.run()
    execute(rig.target_dsn, "ALTER TABLE t DROP g, ADD g integer GENERATED ALWAYS AS (b * 2) STORED")
    rig.run()
    assert_equal(rig)
    execute(rig.target_dsn, "ALTER TABLE t DROP g, ADD g integer GENERATED ALWAYS AS (b * 3) STORED")
    assert not rig.comparison().equal


@gated
@pytest.mark.parametrize("ddl", [DdlPolicy.APPLY, pytest.param(DdlPolicy.REFUSE, marks=pytest.mark.long)])
def test_a_column_that_the_source_computes_from_now_on_is_computed_at_the_target(rig: Rig, ddl: DdlPolicy) -> None:
    begin(rig, *PLAIN)
    name = "d" if ddl is DdlPolicy.APPLY else "b"
    made = f"ALTER TABLE t ADD g integer GENERATED ALWAYS AS ({name} * 2) STORED"
    rename = [f"ALTER TABLE t RENAME b TO {name}"] if name != "b" else []
    if rename:
        # The new column rewrites the table, and that no USING did is for the source to tell.
        install(rig.source_dsn)
    rig.write("UPDATE t SET b = 1 WHERE id < 5", *rename, made, "INSERT INTO t VALUES (99, 'x', 4)")
    if ddl is DdlPolicy.REFUSE:
        with pytest.raises(FatalError, match=r"column g of public\.t was added as a computed one(?s:.*)ADD COLUMN"):
            rig.having(ddl=ddl).run()
        execute(rig.target_dsn, made)
    rig.having(ddl=ddl).run()
    assert_equal(rig)
    execute(rig.target_dsn, "ALTER TABLE t DROP g")
    assert "column g" in str(rig.comparison().tables[0].problem)


_MADE = "ALTER TABLE t ADD g integer GENERATED ALWAYS AS (b * 2) STORED"
ALTERED_SINCE = {
    "another column": ["ALTER TABLE t ADD z integer"],
    "a column that it does not read has another name": ["ALTER TABLE t RENAME a TO z"],
    "it is made again": ["ALTER TABLE t ADD z integer, DROP g, ADD g integer GENERATED ALWAYS AS (z + 1) STORED"],
    "it is ordinary": ["ALTER TABLE t ADD z integer, DROP g, ADD g integer DEFAULT 4"],
    "a column that it reads has another name": ["ALTER TABLE t RENAME b TO z"],
    "it reads a later column": ["ALTER TABLE t ADD z integer", "ALTER TABLE t ALTER g SET EXPRESSION AS (b - z)"],
    "it is computed otherwise": ["ALTER TABLE t ADD z integer", "ALTER TABLE t ALTER g SET EXPRESSION AS (b - 7)"],
}  # fmt: skip


@pytest.mark.parametrize("recipe", variants(ALTERED_SINCE, gated=[*ALTERED_SINCE][1:]))
def test_a_new_computed_column_has_its_expression_though_the_table_was_altered_since(rig: Rig, recipe: str) -> None:
    begin(rig, *PLAIN)
    install(rig.source_dsn)
    rig.write(_MADE, "INSERT INTO t (id, b) VALUES (98, 4)", *ALTERED_SINCE[recipe], "DELETE FROM t WHERE id < 5")
    rig.run()
    assert_equal(rig)


@gated
def test_an_ordinary_column_that_was_dropped_takes_no_expression_of_its_successor_of_that_name(rig: Rig) -> None:
    begin(rig, *PLAIN)
    install(rig.source_dsn)
    rig.write("ALTER TABLE t ADD g integer DEFAULT 1", "INSERT INTO t (id, g) VALUES (97, 8)")
    rig.write(_MADE.replace("ADD", "DROP g, ADD"), "INSERT INTO t (id) VALUES (98)", "ALTER TABLE t ADD z integer")
    rig.write("DELETE FROM t WHERE id < 5")
    rig.run()
    assert_equal(rig)


@pytest.mark.parametrize("here", ["numeric", pytest.param("text", marks=GATED)])
@pytest.mark.parametrize("kind", ["STORED", pytest.param("VIRTUAL", marks=GATED)])
def test_one_that_is_added_of_a_column_with_a_type_of_its_own_asks_for_the_source_s_type(
    rig: Rig, kind: str, here: str
) -> None:
    execute(rig.source_dsn, *PLAIN)
    execute(rig.target_dsn, f"CREATE TABLE t (id integer PRIMARY KEY, a text, b {here})")
    rig.prepare()
    rig.write(ROWS)
    rig.run()
    rig.write(f"ALTER TABLE t ADD g numeric GENERATED ALWAYS AS (b / 2) {kind}", "DELETE FROM t WHERE id < 5")
    with pytest.raises(
        FatalError, match=r"column g of public\.t was added as a computed one(?s:.*)ALTER COLUMN .b. TYPE integer"
    ) as told:
        rig.run()
    execute(rig.target_dsn, str(told.value).partition("the source's (")[2].partition("), then run again")[0])
    rig.run()
    assert_equal(rig)


EVENT_TRIGGERS = ("parallel_apply_capture_ddl", "parallel_apply_capture_rewrite")
UNTOLD = {
    "a stored column": ("STORED", "ALTER TABLE t ALTER g SET EXPRESSION AS (b * 3)"),
    "one that is made again": ("VIRTUAL", "ALTER TABLE t DROP g, ADD g integer GENERATED ALWAYS AS (b * 3) VIRTUAL"),
}


@pytest.mark.parametrize("case", variants(UNTOLD, gated=[*UNTOLD][1:]))
def test_an_expression_that_changed_while_the_event_trigger_was_off_is_followed(rig: Rig, case: str) -> None:
    kind, alter = UNTOLD[case]
    install(rig.source_dsn)
    begin(rig, COMPUTED.replace("STORED", kind))
    rig.run()
    off = [f"ALTER EVENT TRIGGER {name} DISABLE" for name in EVENT_TRIGGERS]
    rig.write(*off, alter, *(f"ALTER EVENT TRIGGER {name} ENABLE ALWAYS" for name in EVENT_TRIGGERS))
    rig.write("INSERT INTO t (id, b) VALUES (98, 4)")
    rig.run()
    assert_equal(rig)


@gated
@pytest.mark.parametrize("is_told", [True, False])
def test_one_that_became_ordinary_behind_an_expression_that_nobody_told_is_copied(rig: Rig, is_told: bool) -> None:
    install(rig.source_dsn)
    begin(rig, COMPUTED)
    rig.run()
    on, off = ([f"ALTER EVENT TRIGGER {name} {how}" for name in EVENT_TRIGGERS] for how in ("ENABLE ALWAYS", "DISABLE"))
    drop = "ALTER TABLE t ALTER g DROP EXPRESSION"
    rig.write(*off, "ALTER TABLE t ALTER g SET EXPRESSION AS (b * 3)", *([*on, drop] if is_told else [drop, *on]))
    rig.write("INSERT INTO t (id, b, g) VALUES (98, 4, 5)")
    with pytest.raises(FatalError, match=r"columns of public\.t had other types or expressions(?s:.*)recopy"):
        rig.run()
    with pytest.raises(FatalError, match="DROP EXPRESSION"):
        recopied(rig)
    recopied(rig, drop).run()
    assert_equal(rig)


NAMED_ANEW = {
    "a type": ("ALTER TYPE mood RENAME TO feeling", "dull"),
    "a label": ("ALTER TYPE mood RENAME VALUE 'dull' TO 'sad'", "sad"),
    "a function": ("ALTER FUNCTION twice RENAME TO double", "dull"),
}


@pytest.mark.parametrize("case", variants(NAMED_ANEW, gated=[*NAMED_ANEW][1:]))
def test_what_an_expression_names_may_get_another_name(rig: Rig, case: str) -> None:
    statement, label = NAMED_ANEW[case]
    install(rig.source_dsn)
    rig.both("CREATE TYPE mood AS ENUM ('dull', 'gay')")
    rig.both("CREATE FUNCTION twice(integer) RETURNS integer IMMUTABLE LANGUAGE sql AS 'SELECT $1 * 2'")
    g = "g integer GENERATED ALWAYS AS (CASE m WHEN 'dull'::mood THEN twice(b) ELSE b END) STORED"
    begin(rig, f"CREATE TABLE t (id integer PRIMARY KEY, a text, b integer, m mood DEFAULT 'dull', {g})")
    rig.run()
    rig.transaction(statement, ddl_message(statement))
    rig.write(f"INSERT INTO t (id, b, m) VALUES (98, 4, '{label}')", "ALTER TABLE t ADD z integer")
    rig.write("DELETE FROM t WHERE id < 5")
    rig.run()
    assert_equal(rig)


RECOMPUTED = {
    "another expression": ["ALTER TABLE t ALTER g SET EXPRESSION AS (b * 3)"],
    "under other names": [
        "ALTER TABLE t RENAME g TO h", "ALTER TABLE t ALTER h SET EXPRESSION AS (b * 3)", "ALTER TABLE t RENAME h TO g",
        "ALTER TABLE t RENAME b TO c",
    ],
    "made again": ["ALTER TABLE t DROP g, ADD g integer GENERATED ALWAYS AS (b - 1) STORED"],
}  # fmt: skip


@gated
@pytest.mark.parametrize("recipe", variants(RECOMPUTED, seldom=["another expression"], gated=["under other names"]))
def test_a_column_that_the_source_computes_otherwise_is_so_at_the_target(rig: Rig, recipe: str) -> None:
    begin(rig, COMPUTED)
    install(rig.source_dsn)
    rig.write(*RECOMPUTED[recipe], "DELETE FROM t WHERE id < 5")
    with pytest.raises(FatalError, match=r"of public\.t (is computed otherwise|was renamed)"):
        rig.having(ddl=DdlPolicy.REFUSE).run()
    rig.run()
    assert_equal(rig)


@gated
@pytest.mark.parametrize("ddl", [DdlPolicy.APPLY, pytest.param(DdlPolicy.REFUSE, marks=GATED)])
def test_a_plain_column_that_takes_a_computed_one_s_name_is_another(rig: Rig, ddl: DdlPolicy) -> None:
    install(rig.source_dsn)
    begin(rig, COMPUTED)
    rig = rig.having(ddl=ddl)
    rig.write("ALTER TABLE t DROP g, ADD g integer DEFAULT 5", "DELETE FROM t WHERE id < 5")
    for _ in range(2 if ddl is DdlPolicy.REFUSE else 0):
        with pytest.raises(FatalError, match=r"column g of public\.t was (dropped|added as)") as told:
            rig.run()
        execute(rig.target_dsn, str(told.value).partition("the source's (")[2].partition("), then run")[0])
    rig.run()
    assert_equal(rig)
    rig.write("ALTER TABLE t DROP g, ADD g uuid DEFAULT gen_random_uuid()", "DELETE FROM t WHERE id < 8")
    with pytest.raises(FatalError, match=r"g of public\.t was (dropped|added as uuid)"):
        rig.run()


@gated
@pytest.mark.parametrize(
    ("with_run", "with_trigger"),
    [
        pytest.param(True, False, marks=GATED), (False, True),
        pytest.param(False, False, marks=GATED), pytest.param(True, True, marks=pytest.mark.long),
    ],
)  # fmt: skip
def test_a_column_that_was_computed_otherwise_before_it_was_no_more_is_copied_anew(
    rig: Rig, with_run: bool, with_trigger: bool
) -> None:
    if with_trigger:
        install(rig.source_dsn)
    begin(rig, COMPUTED)
    rig.write("ALTER TABLE t ALTER g SET EXPRESSION AS (b * 3)")
    if with_run:
        rig.run()
    rig.write("ALTER TABLE t ALTER g DROP EXPRESSION", "DELETE FROM t WHERE id < 5")
    with pytest.raises(FatalError, match=r"columns of public\.t had other types or expressions in between.*: g \("):
        rig.run()
    recopied(rig, "ALTER TABLE t ALTER g DROP EXPRESSION").run()
    assert_equal(rig)


def test_an_expression_that_is_sent_for_another_table_tells_nothing_of_this_one(rig: Rig) -> None:
    install(rig.source_dsn)
    rig.both("CREATE TABLE u (id integer PRIMARY KEY, b integer, g integer GENERATED ALWAYS AS (b) STORED)")
    begin(rig, COMPUTED)
    sent = "ALTER TABLE u ALTER g SET EXPRESSION AS (b + 1)"
    rig.transaction(sent, ddl_message(sent))
    rig.write("ALTER TABLE t ALTER g SET EXPRESSION AS (b * 3)", "ALTER TABLE t ALTER g DROP EXPRESSION")
    rig.write("DELETE FROM t WHERE id < 5")
    with pytest.raises(FatalError, match=r"columns of public\.t had other types or expressions in between.*: g \("):
        rig.run()


@gated
@pytest.mark.parametrize("is_in_order", [True, False])
@pytest.mark.parametrize("is_one_transaction", [True, False])
def test_expressions_that_are_sent_tell_of_no_other_ones(rig: Rig, is_in_order: bool, is_one_transaction: bool) -> None:
    install(rig.source_dsn)
    begin(rig, COMPUTED)
    sent = f"ALTER TABLE t ALTER g SET EXPRESSION AS (b * {3 if is_in_order else 2})"
    unsent = [] if is_in_order else ["ALTER TABLE t ALTER g SET EXPRESSION AS (b * 3)"]
    beside = "ALTER TABLE t ALTER b SET DEFAULT 5"
    rig.transaction(sent, ddl_message(sent), beside, ddl_message(beside), *(unsent if is_one_transaction else ()))
    rig.write(*(() if is_one_transaction else unsent))
    rig.write("ALTER TABLE t ALTER g DROP EXPRESSION", "DELETE FROM t WHERE id < 5")
    if not is_in_order:
        with pytest.raises(FatalError, match=r"columns of public\.t had other types or expressions in between.*: g \("):
            rig.run()
        recopied(rig, "ALTER TABLE t ALTER g DROP EXPRESSION")
    rig.run()
    assert_equal(rig)


@gated
def test_a_column_that_another_is_computed_of_is_renamed_before_that_is_computed_no_more(rig: Rig) -> None:
    install(rig.source_dsn)
    begin(rig, COMPUTED)
    rig.write("ALTER TABLE t RENAME b TO d", "ALTER TABLE t ALTER g DROP EXPRESSION", "DELETE FROM t WHERE id < 5")
    rig.run()
    assert_equal(rig)
