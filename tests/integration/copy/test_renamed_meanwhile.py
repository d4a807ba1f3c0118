"""Tables that somebody alters at the target during a first copy, or behind it, before a run opens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.copy.protocol import CopyOrder
from airflow_parallel_apply.pipeline.errors import TargetError
from tests.support.copying import copying_rig, require_equal
from tests.support.local_copier import LocalCopier
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated

EXCHANGED = ["ALTER TABLE t RENAME a TO x", "ALTER TABLE t RENAME b TO a", "ALTER TABLE t RENAME x TO b"]
MADE_ANEW = ["ALTER TABLE t DROP b", "ALTER TABLE t ADD b text"]
REPLACED = ["ALTER TABLE t RENAME TO t_old", "CREATE TABLE t (LIKE t_old INCLUDING ALL)"]


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    rig = copying_rig(source_dsn, target_dsn, tmp_path, monkeypatch)
    rig.both("CREATE TABLE t (id integer PRIMARY KEY, a text, b text)")
    rig.write("INSERT INTO t SELECT i, 'a' || i, 'b' || i FROM generate_series(1, 20000) i")
    return rig


@pytest.mark.parametrize(
    "altered", [MADE_ANEW, pytest.param(EXCHANGED, marks=GATED), pytest.param(REPLACED, marks=GATED)]
)
def test_parts_of_a_table_that_is_altered_between_them_go_to_none_and_the_next_copy_is_whole(
    rig: Rig, altered: list[str]
) -> None:
    class Altering(LocalCopier):
        def copy(self, order: CopyOrder, parts: Sequence[int]) -> None:
            super().copy(order, parts[:1])
            execute(rig.target_dsn, *altered)
            super().copy(order, parts[1:])

    with pytest.raises(TargetError, match="Run again: the copy begins anew"):
        replace(rig, copier=lambda rig: Altering(source=rig.source, target=rig.target)).prepare()
    rig.run()
    require_equal(rig)


@gated
def test_rows_go_to_the_columns_that_the_copy_filled_whatever_their_names_are_by_now(rig: Rig) -> None:
    rig.prepare()
    execute(rig.target_dsn, *EXCHANGED)
    rig.write("INSERT INTO t VALUES (0, 'a', 'b')")
    with pytest.raises(TargetError, match="columns that had these values so far have other names at the target"):
        rig.run()
    execute(rig.target_dsn, *EXCHANGED)
    rig.run()
    require_equal(rig)
