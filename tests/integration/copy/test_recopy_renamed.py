"""Tables that are copied anew behind a rename: what was sent of them under their former names is in the copy, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import DdlPolicy, PipelineConfig, TablePatterns
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import ConfigurationError, TargetError
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    config = PipelineConfig(
        pipeline="p",
        log_url=str(tmp_path / "log"),
        channels=2,
        lanes=1,
        tables=TablePatterns(include=("public.*",)),
        epoch_max_changes=20,
    )
    made = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    made.both("CREATE TABLE a (v text)", "CREATE TABLE other (id integer PRIMARY KEY)")
    made.prepare()
    made.write("INSERT INTO a VALUES ('first')", "INSERT INTO other VALUES (1)")
    made.run()
    return made


@pytest.mark.parametrize(
    ("ddl", "is_captured"),
    [
        (DdlPolicy.REFUSE, True),
        (DdlPolicy.APPLY, False),
        pytest.param(DdlPolicy.REFUSE, False, marks=pytest.mark.long),
        pytest.param(DdlPolicy.APPLY, True, marks=pytest.mark.long),
    ],
)
def test_changes_under_a_former_name_are_passed_over(rig: Rig, ddl: DdlPolicy, is_captured: bool) -> None:
    rig = rig.having(ddl=ddl)
    rig.write("INSERT INTO a VALUES ('second')", "INSERT INTO other VALUES (2)")
    if is_captured:
        rig.capture("captured")
    rig.write("ALTER TABLE a RENAME TO z", "INSERT INTO z VALUES ('third')")
    execute(rig.target_dsn, "ALTER TABLE a RENAME TO z")
    recopy_tables(rig.config, rig.source, rig.target, [("public", "z")], report=lambda _: None)
    rig.write("INSERT INTO z VALUES ('fourth')")
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


@pytest.mark.parametrize("is_left_out", [False, pytest.param(True, marks=GATED)])
def test_a_new_table_whose_name_had_rows_of_another_that_no_run_has_read_is_copied_with_that(
    rig: Rig, *, is_left_out: bool
) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY, create_tables=True)
    made = "CREATE TABLE z (id integer CONSTRAINT {} PRIMARY KEY)"
    rig.both(made.format("one"))
    rig.run()
    rig.write("INSERT INTO z VALUES (1), (2)", "ALTER TABLE z RENAME TO z_old", made.format("two"))
    rig.write("INSERT INTO z VALUES (3)")
    with pytest.raises(ConfigurationError, match=r"new tables with rows.*recopy .*--table public\.z`"):
        rig.run()
    with pytest.raises(ConfigurationError, match=r"--table public\.z --table public\.z_old`.* leave public\.z out"):
        recopy_tables(rig.config, rig.source, rig.target, [("public", "z")], report=lambda _: None)
    if is_left_out:
        rig.having(tables=TablePatterns(include=("public.*",), exclude=("public.z",))).run()
        recopy_tables(rig.config, rig.source, rig.target, [("public", "z")], report=lambda _: None)
    else:
        execute(rig.target_dsn, "ALTER TABLE z RENAME CONSTRAINT one TO one_old")
        names = [("public", "z"), ("public", "z_old")]
        recopy_tables(rig.config, rig.source, rig.target, names, report=lambda _: None)
    rig.write("INSERT INTO z VALUES (4)", "INSERT INTO z_old VALUES (5)")
    rig.run()
    assert rig.rows("SELECT id FROM z ORDER BY 1") == [(3,), (4,)]
    assert rig.rows("SELECT id FROM z_old ORDER BY 1") == [(1,), (2,), (5,)]


@gated
def test_what_is_left_of_a_table_that_gave_its_name_away_is_not_its_namesakes(rig: Rig) -> None:
    rig = rig.having(tables=TablePatterns(include=("public.*",), exclude=("public.*_old",)))
    rig.write("ALTER TABLE a RENAME TO a_old", "INSERT INTO a_old VALUES ('second')", "CREATE TABLE a (v text)")
    rig.write("INSERT INTO a VALUES ('first of another')")
    with pytest.raises(ConfigurationError, match=r'DROP TABLE ONLY "public"."a_old"'):
        rig.run()
    rig.write("ALTER PUBLICATION parallel_apply_p DROP TABLE ONLY a_old", "INSERT INTO a_old VALUES ('third')")
    with pytest.raises(ConfigurationError, match=r"new tables with rows(?s:.*)recopy .*--table public\.a"):
        rig.run()
    recopy_tables(rig.config, rig.source, rig.target, [("public", "a")], report=lambda _: None)
    rig.write("INSERT INTO a VALUES ('second of another')")
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


@gated
def test_tables_that_exchanged_their_names_are_copied_together(rig: Rig) -> None:
    rig.both("CREATE TABLE b (v text)")
    rig.run()
    rig.write("INSERT INTO a VALUES ('second')", "INSERT INTO b VALUES ('first of b')")
    rig.run()
    swap = ("ALTER TABLE a RENAME TO x", "ALTER TABLE b RENAME TO a", "ALTER TABLE x RENAME TO b")
    rig.write("INSERT INTO a VALUES ('third')", *swap, "INSERT INTO b VALUES ('fourth')")
    execute(rig.target_dsn, *swap)
    with pytest.raises(ConfigurationError, match=r"public\.b as public\.a") as refused:
        recopy_tables(rig.config, rig.source, rig.target, [("public", "a")], report=lambda _: None)
    assert "--table public.a --table public.b" in (refused.value.hint or "")
    recopy_tables(rig.config, rig.source, rig.target, [("public", "a"), ("public", "b")], report=lambda _: None)
    rig.write("INSERT INTO a VALUES ('last of b')")
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


@gated
@pytest.mark.parametrize("ddl", [DdlPolicy.APPLY, pytest.param(DdlPolicy.REFUSE, marks=GATED)])
def test_a_table_that_became_a_partition_of_its_namesake_is_copied_with_it(rig: Rig, ddl: DdlPolicy) -> None:
    rig = rig.having(ddl=ddl)
    rig.both("CREATE TABLE c (id integer PRIMARY KEY)")
    rig.run()
    rig.write("INSERT INTO c VALUES (1), (2)")
    rig.run()
    rig.transaction(
        "ALTER TABLE c RENAME TO c_old",
        "CREATE TABLE c (LIKE c_old INCLUDING ALL) PARTITION BY RANGE (id)",
        "ALTER TABLE c ATTACH PARTITION c_old DEFAULT",
    )
    rig.write("DELETE FROM c WHERE id = 1", "INSERT INTO c VALUES (3)")
    with pytest.raises(ConfigurationError, match=r"new tables with rows(?s:.*)recopy .*--table public\.c"):
        rig.run()
    recopy_tables(rig.config, rig.source, rig.target, [("public", "c")], report=lambda _: None)
    rig.write("UPDATE c SET id = 4 WHERE id = 2")
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


@gated
def test_a_table_whose_namesake_left_the_patterns_is_copied_alone(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.transaction(
        "CREATE SCHEMA archive",
        "ALTER TABLE other SET SCHEMA archive",
        "CREATE TABLE other (LIKE archive.other INCLUDING ALL)",
        "INSERT INTO other VALUES (7)",
    )
    with pytest.raises(ConfigurationError, match=r"no longer match: archive\.other"):
        rig.run()
    rig.write("ALTER PUBLICATION parallel_apply_p DROP TABLE archive.other")
    with pytest.raises(ConfigurationError, match=r"new tables with rows(?s:.*)recopy .*--table public\.other"):
        rig.run()
    recopy_tables(rig.config, rig.source, rig.target, [("public", "other")], report=lambda _: None)
    rig.write("UPDATE other SET id = 8", "INSERT INTO archive.other VALUES (9)")
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


@gated
def test_what_a_table_left_under_its_former_name_is_not_the_beginning_of_the_next_one_of_that_name(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.write("ALTER TABLE a RENAME TO z")
    execute(rig.target_dsn, "CREATE TABLE z (v text)")
    recopy_tables(rig.config, rig.source, rig.target, [("public", "z")], report=lambda _: None)
    rig.write("CREATE TABLE a (v text)", "INSERT INTO other VALUES (3)")
    with pytest.raises(TargetError, match=r"public\.a has rows, and the source's table had none") as caught:
        rig.run()
    assert "recopy --pipeline p --table public.a" in (caught.value.hint or "")
    checked = check_pipeline(rig.config, rig.source, rig.target)
    assert any("public.a has rows" in finding.what for finding in checked.findings)
    recopy_tables(rig.config, rig.source, rig.target, [("public", "a")], report=lambda _: None)
    rig.write("INSERT INTO a VALUES ('new')", "INSERT INTO z VALUES ('more')")
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison
