"""Snapshots beside a running pipeline: the source's rows as of a transaction, whole or not there."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from typer.testing import CliRunner

from airflow_parallel_apply.cli.app import app
from airflow_parallel_apply.pipeline.compact.open import compact
from airflow_parallel_apply.pipeline.compact.protocol import CompactOptions, CompactReport
from airflow_parallel_apply.pipeline.config import Consistency, DdlPolicy, PipelineConfig, Start
from airflow_parallel_apply.pipeline.encode.files.dataset import Dataset
from airflow_parallel_apply.pipeline.encode.files.place import FilePlace
from airflow_parallel_apply.pipeline.errors import EncodeError, Unavailable
from airflow_parallel_apply.pipeline.log.open import open_reader
from tests.integration.target_files.test_runs import TABLE, change
from tests.support.rig import Rig, execute
from tests.support.variants import GATED, gated

NOW = timedelta(0)
DUCKDB = """
SET VARIABLE lake = '{lake}';
SET VARIABLE snapshot = (
    SELECT max_by(body, body.version) FROM read_json(getvariable('lake') || '/_snapshots/_manifests/*.json')
);
SET VARIABLE folded = (
    SELECT list(getvariable('lake') || '/_snapshots/' || f.path)
    FROM (SELECT unnest(getvariable('snapshot').files) AS f) WHERE f.table = 'public.t'
);
SET VARIABLE behind = (
    SELECT list(DISTINCT getvariable('lake') || '/' || f.path)
    FROM (SELECT unnest(body.files) AS f FROM read_json(getvariable('lake') || '/_manifests/**/*.json'))
    WHERE f.table = 'public.t' AND f.last_seqno > getvariable('snapshot').positions.snapshot
);
SELECT id, v, CAST(n AS text) FROM (
    SELECT *, row_number() OVER (PARTITION BY id ORDER BY _seqno DESC, _fragno DESC) AS place FROM (
        FROM read_parquet(getvariable('folded'), union_by_name = true)
        UNION ALL BY NAME
        FROM read_parquet(getvariable('behind'), union_by_name = true)
        WHERE _seqno > getvariable('snapshot').positions.snapshot
    )
) WHERE place = 1 AND _operation <> 'delete' ORDER BY id
"""


@pytest.fixture
def rig(source_dsn: str, ledger_dsn: str, tmp_path: Path) -> Rig:
    execute(
        source_dsn,
        TABLE,
        "CREATE TABLE wide (id integer PRIMARY KEY, a text, b text)",
        "ALTER TABLE wide ALTER a SET STORAGE EXTERNAL",
        "CREATE TABLE bag (a integer, b text)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        "CREATE TABLE gone (id integer PRIMARY KEY)",
    )
    config = PipelineConfig(
        pipeline="demo", log_url=str(tmp_path / "log"), start=Start.EMPTY, channels=4, ddl=DdlPolicy.SKIP
    )
    return Rig(config=config, source_dsn=source_dsn, target_dsn=f"files+file://{tmp_path}/lake", ledger_dsn=ledger_dsn)


def compacted(rig: Rig, **options: Any) -> CompactReport:
    return compact(rig.target, CompactOptions(**options), log=open_reader(rig.config.log_url))


def change_all(rig: Rig) -> None:
    rig.write("DELETE FROM t WHERE id < 5000")
    change(rig)
    rig.write(
        "DELETE FROM wide WHERE id > 1000",
        "INSERT INTO wide SELECT i, repeat(i::text, 3000), 'b' FROM generate_series(1, 30) i ON CONFLICT DO NOTHING",
        "UPDATE wide SET b = b || '!' WHERE id % 2 = 0",
        "UPDATE wide SET id = id + 1000 WHERE id % 3 = 0 AND id < 1000",
        "UPDATE wide SET b = b || '?' WHERE id > 1000",
        "INSERT INTO bag SELECT i % 4, 'x' FROM generate_series(1, 20) i",
        "DELETE FROM bag WHERE ctid IN (SELECT ctid FROM bag WHERE a = 1 LIMIT 2)",
        "UPDATE bag SET b = 'y' WHERE a = 2",
        "INSERT INTO gone SELECT generate_series(1, 5) ON CONFLICT DO NOTHING",
        "TRUNCATE gone",
        "INSERT INTO gone VALUES (7)",
    )


@pytest.mark.parametrize("consistency", [pytest.param(one, marks=GATED) for one in Consistency])
def test_snapshots_and_the_feed_behind_them_are_the_source_s_rows(
    rig: Rig, tmp_path: Path, consistency: Consistency
) -> None:
    rig = rig.having(consistency=consistency)
    rig.prepare()
    lake = tmp_path / "lake"
    assert compacted(rig).seqno is None
    for step in range(3):
        change_all(rig)
        rig.run(f"run {step}")
        report = compacted(rig, memory_bytes=20_000 if step == 1 else 2**28)
        assert report.made
        assert report.rows["public.gone"] == 1
        assert rig.comparison().equal
        again = compacted(rig)
        assert not again.made
        assert again.seqno == report.seqno
        rig.write("UPDATE t SET v = v || 'more', id = id + 5000", "DELETE FROM t WHERE id % 2 = 0")
        if step == 1:
            rig.write(
                "ALTER TABLE t ADD COLUMN note text DEFAULT 'as ever'", "UPDATE t SET note = NULL WHERE id < 5100"
            )
        rig.run(f"behind {step}")
        # Of a column that is added behind a snapshot nobody fills older rows before the next one.
        assert rig.comparison().equal or step == 1, "the snapshot, and the feed behind it"
        rows: list[tuple[Any, ...]] = []
        session = duckdb.connect()
        for statement in DUCKDB.format(lake=lake).split(";"):
            rows = session.execute(statement).fetchall()
        assert [(row[0], row[1]) for row in rows] == rig.rows("SELECT id, v FROM t ORDER BY id", side="source")
    removed = compacted(rig, remove=True, grace=NOW).removed
    assert any(path.startswith("_snapshots/") for path in removed)
    assert not compacted(rig, remove=True, grace=NOW).removed
    change_all(rig)
    rig.run("last")
    assert compacted(rig, remove=True, grace=NOW).made
    assert rig.comparison().equal


def test_a_snapshot_ends_at_a_transaction_and_refuses_what_it_cannot_read(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = replace(rig, target_dsn=f"{rig.target_dsn}?format=csv")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a')", "UPDATE t SET v = 'b'", "DELETE FROM t")
    rig.run()
    publish = FilePlace.publish

    def unanswered(*given: Any) -> None:
        publish(*given)
        raise Unavailable("the answer is lost")

    with monkeypatch.context() as patched:
        patched.setattr(FilePlace, "publish", unanswered)
        with pytest.raises(Unavailable, match="the answer is lost"):
            compacted(rig, until_seqno=1)
    assert compacted(rig, until_seqno=1).rows["public.t"] == 1
    assert rig.comparison().equal
    with pytest.raises(Unavailable, match="cancelled"):
        compact(rig.target, CompactOptions(), log=open_reader(rig.config.log_url), cancelled=lambda: True)
    assert not compacted(rig, until_seqno=1).made
    place = rig.target.url.removeprefix("files+file://").partition("?")[0]
    (file,) = [one for manifest in Dataset(FilePlace(place)).manifests() for one in manifest.files][:1]
    shutil.copy(Path(place, file.path), tmp_path / "kept")
    Path(place, file.path).write_bytes(b"other")
    with pytest.raises(EncodeError, match="not as it was written"):
        compacted(rig)
    shutil.copy(tmp_path / "kept", Path(place, file.path))
    assert compacted(rig).rows["public.t"] == 0


@pytest.mark.long
@pytest.mark.parametrize("format_", ["arrow", "avro", "csv", "json"])
@pytest.mark.timeout(240)
def test_every_format_is_folded_and_compared(rig: Rig, format_: str) -> None:
    rig = replace(rig, target_dsn=f"{rig.target_dsn}?format={format_}")
    rig.prepare()
    for step in range(2):
        change_all(rig)
        rig.run(f"run {step}")
        assert rig.comparison().equal, rig.comparison()
        assert compacted(rig, memory_bytes=2**28 if step else 20_000).made
        assert rig.comparison().equal, rig.comparison()
    rig.write("UPDATE t SET v = v || 'more', id = id + 5000")
    rig.run("behind")
    assert rig.comparison().equal, rig.comparison()
    assert compacted(rig, remove=True, grace=NOW).removed
    assert rig.comparison().equal, rig.comparison()


@gated
def test_a_column_that_became_text_is_told_apart_where_the_format_says_so(rig: Rig) -> None:
    rig = replace(rig, target_dsn=f"{rig.target_dsn}?format=csv")
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a', 1.5)")
    rig.run()
    rig = replace(rig, target_dsn=f"{rig.target_dsn}&text=public.t.n")
    rig.write("UPDATE t SET n = 'NaN'")
    rig.run("text")
    with pytest.raises(EncodeError, match="have n as the source's text, and as typed values"):
        compacted(rig)
    assert [table.problem for table in rig.comparison().tables if not table.equal and table.problem]


@gated
def test_the_command_folds_and_removes(rig: Rig) -> None:
    rig.prepare()
    rig.write("INSERT INTO t VALUES (1, 'a')", "UPDATE t SET v = 'b'")
    rig.run()
    asked = ["compact", "--target", rig.target_dsn, "--log-url", rig.config.log_url]
    found = CliRunner().invoke(app, [*asked, "--remove", "--grace-hours", "0"])
    assert found.exit_code == 0, found.output
    assert "1 rows of 1 tables" in found.output
    assert "removed" in found.output
    assert '"made": false' in CliRunner().invoke(app, [*asked, "--json"]).output


@gated
def test_a_renamed_table_whose_name_a_new_one_took_keeps_its_rows(rig: Rig) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.write("CREATE TABLE events (id integer PRIMARY KEY, v text)")
    rig.prepare()
    rig.write("INSERT INTO events SELECT i, 'old' FROM generate_series(1, 3) i")
    rig.run()
    rig.write("ALTER TABLE events RENAME TO events_2023; CREATE TABLE events (id integer PRIMARY KEY, w text)")
    rig.run()
    rig.write("INSERT INTO events VALUES (1, 'new')")
    rig.run()
    report = compacted(rig, remove=True, grace=NOW)
    assert report.replaced == ()
    assert (report.rows["public.events_2023"], report.rows["public.events"]) == (3, 1)
    assert rig.comparison().equal
    rig.write("UPDATE events_2023 SET v = 'later'")
    rig.run()
    assert compacted(rig, remove=True, grace=NOW).made
    assert rig.comparison().equal


@gated
def test_columns_that_came_one_after_the_other_or_became_text_are_folded(rig: Rig) -> None:
    """Also where the key has moved since."""
    rig = rig.having(ddl=DdlPolicy.APPLY)
    rig.ddl("")
    rig.write("CREATE TABLE moved (id integer PRIMARY KEY, k integer NOT NULL UNIQUE, v varchar(5))")
    rig.prepare()
    rig.write(
        "INSERT INTO t (id, v, n) SELECT i, 'v' || i, i FROM generate_series(1, 3) i",
        "INSERT INTO moved SELECT i, i + 10, 'v' || i FROM generate_series(1, 3) i",
    )
    rig.run()
    for number, (of_t, of_moved) in enumerate(
        (
            ("ADD COLUMN a integer DEFAULT 5", "ADD COLUMN a numeric(3, 1) DEFAULT 1.5"),
            ("ALTER COLUMN id TYPE text", "ALTER COLUMN a TYPE numeric(5, 1)"),
            ("ADD COLUMN b text DEFAULT 'b'", "ALTER COLUMN v TYPE text"),
            ("ALTER COLUMN n TYPE text, ALTER COLUMN a TYPE bigint", "DROP CONSTRAINT moved_pkey, ADD PRIMARY KEY (k)"),
        )
    ):
        rig.write(f"ALTER TABLE t {of_t}", f"ALTER TABLE moved {of_moved}")
        rig.write(
            f"INSERT INTO t (id, v) VALUES ({number + 10}, 'new')",
            f"INSERT INTO moved (id, k) VALUES ({number + 10}, {number + 30})",
        )
        rig.run()
    assert compacted(rig).made
    assert rig.comparison().equal, rig.comparison()
