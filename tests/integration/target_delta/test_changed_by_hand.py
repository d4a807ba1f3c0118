"""Tables of a lake that somebody brings to the source's newer definition by hand, for a run with ddl=skip."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_parallel_apply.pipeline.config import DdlPolicy, PipelineConfig, Start
from airflow_parallel_apply.pipeline.errors import FatalError, TargetError
from tests.support.rig import Rig, execute, skip_as_the_hint_says
from tests.support.variants import GATED, gated, variants

CHANGES: dict[str, tuple[str, Callable[[pa.Table], pa.Table]]] = {
    "ADD c integer DEFAULT 5": (
        "older rows have '5' in the new column c",
        lambda rows: rows.append_column("c", pa.array([5] * len(rows), pa.int32())),
    ),
    "RENAME v TO w": ("v is w now", lambda rows: rows.rename_columns(["id", "w"])),
    "DROP v": ("v is gone", lambda rows: rows.drop_columns(["v"])),
}


@pytest.fixture
def rig(source_dsn: str, ledger_dsn: str, tmp_path: Path) -> Rig:
    execute(source_dsn, "CREATE TABLE t (id integer PRIMARY KEY, v text)")
    (tmp_path / "lake").mkdir()
    config = PipelineConfig(pipeline="demo", log_url=str(tmp_path / "log"), start=Start.EMPTY, channels=2)
    found = Rig(config=config, source_dsn=source_dsn, target_dsn=f"delta://{tmp_path}/lake", ledger_dsn=ledger_dsn)
    found.prepare()
    found.write("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    found.run()
    return found


@gated
@pytest.mark.parametrize("change", variants(CHANGES, seldom={"RENAME v TO w", "DROP v"}))
def test_rows_that_came_before_a_change_in_its_transaction_are_those_of_the_changed_table(
    rig: Rig, tmp_path: Path, change: str
) -> None:
    told_as, changed = CHANGES[change]
    rig.transaction(
        "INSERT INTO t VALUES (4, 'd')",
        "UPDATE t SET id = 20 WHERE id = 2",
        "DELETE FROM t WHERE id = 3",
        f"ALTER TABLE t {change}",
        "INSERT INTO t VALUES (5)",
    )
    with pytest.raises(FatalError, match=told_as) as told:
        rig.run()
    rig.write("ALTER TABLE t ADD later text DEFAULT 'x'", "INSERT INTO t (id) VALUES (6)")
    table = DeltaTable(f"{tmp_path}/lake/public/t")
    write_deltalake(table, changed(table.to_pyarrow_table()), mode="overwrite", schema_mode="overwrite")
    skip_as_the_hint_says(rig, told.value)
    with pytest.raises(FatalError, match="older rows have 'x' in the new column later"):
        rig.run()
    found = DeltaTable(f"{tmp_path}/lake/public/t").to_pyarrow_table()
    columns = ", ".join(found.column_names)
    rows = [tuple(row.values()) for row in found.sort_by("id").to_pylist()]
    assert rows == rig.rows(f"SELECT {columns} FROM t WHERE id <> 6 ORDER BY id", side="source")


@gated
def test_rows_of_a_large_transaction_that_renames_their_table_are_not_those_of_the_former_name(
    rig: Rig, tmp_path: Path
) -> None:
    rig.transaction(
        "INSERT INTO t SELECT i FROM generate_series(11, 610) i",
        "ALTER TABLE t RENAME TO renamed",
        "INSERT INTO renamed VALUES (5)",
    )
    with pytest.raises(FatalError, match="renamed") as told:
        rig.run()
    lake = tmp_path / "lake" / "public"
    shutil.copytree(lake / "t", lake / "renamed")
    skip_as_the_hint_says(rig, told.value)
    counts = [DeltaTable(str(lake / name)).to_pyarrow_table().num_rows for name in ("t", "renamed")]
    assert counts == [3, 604]


@gated
def test_tables_that_exchanged_their_names_are_known_by_their_directories(rig: Rig, tmp_path: Path) -> None:
    rig.write("CREATE TABLE s (id integer PRIMARY KEY, v text)")
    rig.run()
    rig.write("INSERT INTO s VALUES (21, 's')")
    rig.run()
    rig.write("INSERT INTO t VALUES (4, 'd')")
    rig.transaction("ALTER TABLE t RENAME TO x", "ALTER TABLE s RENAME TO t", "ALTER TABLE x RENAME TO s")
    rig.write("INSERT INTO t VALUES (22, 's')", "INSERT INTO s VALUES (5, 'e')")
    with pytest.raises(FatalError, match=r"Move the tables' directories .*public.s to public.t") as told:
        rig.run()
    with pytest.raises(FatalError, match=r"is not in the lake by this name.*lies in .*/public/s,"):
        skip_as_the_hint_says(rig, told.value)
    lake = tmp_path / "lake" / "public"
    for before, after in (("t", "x"), ("s", "t"), ("x", "s")):
        (lake / before).rename(lake / after)
    skip_as_the_hint_says(rig, told.value)
    rig.run()
    assert rig.comparison().equal


@gated
@pytest.mark.parametrize("kind", [pa.string(), pytest.param(pa.int32(), marks=GATED)])
def test_a_column_that_the_lake_has_already_has_no_value_that_the_source_s_new_one_lacks(
    rig: Rig, tmp_path: Path, kind: pa.DataType
) -> None:
    following = rig.having(ddl=DdlPolicy.APPLY)
    table = DeltaTable(f"{tmp_path}/lake/public/t")
    own = pa.array([7, None, None], pa.int32()).cast(kind)
    rows = table.to_pyarrow_table().append_column("c", own)
    write_deltalake(table, rows, mode="overwrite", schema_mode="overwrite")
    rig.write("ALTER TABLE t ADD c text", "INSERT INTO t VALUES (4, 'd', 'c')")
    with pytest.raises(TargetError, match=rf"has a column c \({kind}\) in the lake already, .* set it to null"):
        following.run()
    if kind == pa.string():
        table.update(updates={"c": "NULL"})
    else:
        write_deltalake(table, rows.drop_columns(["c"]), mode="overwrite", schema_mode="overwrite")
    following.run()
    assert following.comparison().equal


@gated
def test_rows_of_which_nothing_tells_what_they_have_since_are_refused(rig: Rig) -> None:
    rig.transaction(
        "INSERT INTO t VALUES (4, 'd')",
        "ALTER TABLE t DROP v",
        "ALTER TABLE t ADD v text",
        "INSERT INTO t VALUES (5, 'e')",
    )
    with pytest.raises(FatalError, match="v may be another column") as told:
        rig.run()
    with pytest.raises(FatalError, match="nothing tells what they have in v since"):
        skip_as_the_hint_says(rig, told.value)


@gated
def test_a_refusal_tells_what_else_the_transaction_changed_which_a_run_that_skips_it_takes_as_done(
    rig: Rig, tmp_path: Path
) -> None:
    rig.write("CREATE TABLE s (id integer PRIMARY KEY, v text, u text)")
    rig.run()
    rig.write("INSERT INTO s VALUES (1, 'v', 'u')")
    rig.run()
    rig.transaction(
        "ALTER TABLE t DROP v",
        "INSERT INTO t VALUES (4)",
        "ALTER TABLE s RENAME v TO x",
        "ALTER TABLE s RENAME u TO v",
        "ALTER TABLE s RENAME x TO u",
        "INSERT INTO s (id, v, u) VALUES (2, 'v', 'u')",
    )
    with pytest.raises(FatalError, match=r"so first do that: public.s: .*v is u now, u is v now") as told:
        rig.run()
    for name, columns in (("t", ["id"]), ("s", ["id", "u", "v"])):
        table = DeltaTable(f"{tmp_path}/lake/public/{name}")
        rows = table.to_pyarrow_table().select(range(len(columns))).rename_columns(columns)
        write_deltalake(table, rows, mode="overwrite", schema_mode="overwrite")
    skip_as_the_hint_says(rig, told.value)
    rig.run()
    assert rig.comparison().equal
