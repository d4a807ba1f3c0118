"""Schemas that exchange their names while their tables are copied: a table's name is another one's by then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy, PipelineConfig, TablePatterns
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.copy.postgres.recopy import Recopy
from airflow_parallel_apply.pipeline.copy.protocol import CopyOrder
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.source.postgres.catalog import own_rows
from airflow_parallel_apply.pipeline.source.postgres.setup import copied, first_run
from tests.support.local_copier import LocalCopier
from tests.support.rig import Rig, execute
from tests.support.variants import gated

EXCHANGED = (
    "BEGIN; ALTER SCHEMA blue RENAME TO x; ALTER SCHEMA green RENAME TO blue; ALTER SCHEMA x RENAME TO green; COMMIT"
)


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    config = PipelineConfig(
        pipeline="p",
        log_url=str(tmp_path / "log"),
        channels=2,
        lanes=1,
        ddl=DdlPolicy.APPLY,
        tables=TablePatterns(include=("blue.*", "green.*")),
    )
    rig = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    rig.both(
        *(f"CREATE SCHEMA {name}; CREATE TABLE {name}.t (id integer PRIMARY KEY, v text)" for name in ("blue", "green"))
    )
    rig.write("INSERT INTO blue.t VALUES (1, 'blue'), (2, 'blue')", "INSERT INTO green.t VALUES (1, 'green')")
    return rig


def before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], None]) -> None:
    """Act once, before this is called for the first time."""
    called, todo = getattr(owner, name), [act]

    def acting(*given: Any, **named: Any) -> Any:
        while todo:
            todo.pop()()
        return called(*given, **named)

    monkeypatch.setattr(owner, name, acting)


def require_followed(rig: Rig) -> None:
    rig.run()
    rig.write("INSERT INTO blue.t VALUES (10, 'blue')", "INSERT INTO green.t VALUES (10, 'green')")
    rig.run()
    for schema in ("blue", "green"):
        query = f"SELECT * FROM {schema}.t ORDER BY id"
        assert rig.rows(query) == rig.rows(query, side="source")


def test_a_first_copy_has_the_rows_of_each_table(rig: Rig) -> None:
    class Exchanging(LocalCopier):
        def copy(self, order: CopyOrder, parts: Sequence[int]) -> None:
            execute(rig.source_dsn, EXCHANGED)
            super().copy(order, parts)

    replace(rig, copier=lambda rig: Exchanging(source=rig.source, target=rig.target)).prepare()
    require_followed(rig)


@gated
def test_a_publication_that_got_another_table_under_the_name_of_one_is_made_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rig.having(tables=TablePatterns(include=("blue.*",)))
    before(monkeypatch, first_run.FirstRun, "_publish", lambda: execute(rig.source_dsn, EXCHANGED))
    before(monkeypatch, first_run, "held", lambda: execute(rig.source_dsn, EXCHANGED))
    rig.prepare()
    rig.write("INSERT INTO blue.t VALUES (10, 'blue')")
    rig.run()
    assert rig.comparison().equal, rig.comparison()


@gated
def test_a_part_whose_name_passes_on_just_before_it_is_read_is_copied_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = own_rows.names_now
    left = [EXCHANGED]

    def then_exchanged(*given: Any) -> Any:
        names = looked_up(*given)
        execute(rig.source_dsn, *left)
        left.clear()
        return names

    class Exchanging(LocalCopier):
        def copy(self, order: CopyOrder, parts: Sequence[int]) -> None:
            monkeypatch.setattr(own_rows, "names_now", then_exchanged)
            super().copy(order, parts)

    replace(rig, copier=lambda rig: Exchanging(source=rig.source, target=rig.target)).prepare()
    assert not left
    require_followed(rig)


@gated
def test_a_table_that_is_copied_anew_has_its_own_rows(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.run()
    before(monkeypatch, Recopy, "_load", lambda: execute(rig.source_dsn, EXCHANGED))
    recopy_tables(rig.config, rig.source, rig.target, [("blue", "t")], report=lambda progress: None)
    require_followed(rig)


@gated
def test_a_copy_into_the_log_has_the_rows_of_each_table(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = replace(rig, target_dsn=f"files+file://{tmp_path}/lake", ledger_dsn=rig.target_dsn)
    before(monkeypatch, copied, "_hold", lambda: execute(rig.source_dsn, EXCHANGED))
    rig.run()
    state = open_reader(rig.config.log_url).state()
    names = {relation.relation_id: relation.name for relation in state.relations}
    rows = open_reader(rig.config.log_url).rows(-1, state.last_seqno, columns=["relation_id"])
    found = Counter(names[one] for batch in rows for one in batch.column("relation_id").to_pylist())
    assert found == {"blue.t": 2, "green.t": 1}
