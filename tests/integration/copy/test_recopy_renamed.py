"""Tables that are copied anew behind a rename: what was sent of them under their former names is in the copy, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy, PipelineConfig, TablePatterns
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from tests.support.rig import Rig, execute


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    config = PipelineConfig(
        pipeline="p",
        log_url=str(tmp_path / "log"),
        channels=2,
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
