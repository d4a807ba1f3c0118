"""Each trouble is found by name, its command fixes it, and then it is found no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from rich.console import Console

from airflow_parallel_apply.cli.check_view import check_view
from airflow_parallel_apply.pipeline.admin.watch import lease_view
from airflow_parallel_apply.pipeline.config import DdlPolicy, Start, TablePatterns
from airflow_parallel_apply.pipeline.errors import ConfigurationError, FatalError
from airflow_parallel_apply.pipeline.model.finding import Severity, Side
from airflow_parallel_apply.pipeline.run import open_run
from tests.support.findings import checked_rig, fix, found, look
from tests.support.rig import Rig, execute
from tests.support.troubles import ORIGIN_FUNCTIONS, ROLE, TROUBLES
from tests.support.variants import gated, variants


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    return checked_rig(source_dsn, target_dsn, tmp_path)


@pytest.fixture
def limited(rig: Rig) -> Iterator[Rig]:
    """The same, as roles that have every right they need, and nothing more."""
    for dsn in (rig.source_dsn, rig.target_dsn):
        execute(dsn, f'CREATE ROLE "{ROLE}" LOGIN')
        name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
        execute(dsn, f'GRANT CREATE ON DATABASE {name} TO "{ROLE}"')
    execute(rig.source_dsn, f'ALTER ROLE "{ROLE}" REPLICATION', f'ALTER TABLE t OWNER TO "{ROLE}"')
    execute(
        rig.target_dsn,
        f'GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON t TO "{ROLE}"',
        f'GRANT EXECUTE ON FUNCTION {", ".join(ORIGIN_FUNCTIONS)} TO "{ROLE}"',
    )
    yield replace(
        rig,
        source_dsn=make_conninfo(rig.source_dsn, user=ROLE),
        target_dsn=make_conninfo(rig.target_dsn, user=ROLE),
    )
    for dsn in (rig.source_dsn, rig.target_dsn):
        execute(dsn, f'REASSIGN OWNED BY "{ROLE}" TO postgres', f'DROP OWNED BY "{ROLE}"', f'DROP ROLE "{ROLE}"')


def test_two_good_sides_have_no_finding(rig: Rig, limited: Rig) -> None:
    assert look(rig).findings == ()
    assert look(limited).findings == ()
    assert look(limited).tables == ("public.t",)
    limited.prepare()
    assert look(limited).findings == ()


IN_SHORT = ("no right to replicate", "no right to the schema", "a partition without identity", "no column")
"""All of them at once are told and fixed in a test of their own."""


@pytest.mark.parametrize(
    "name",
    variants(
        TROUBLES,
        seldom=[name for name in TROUBLES if name not in IN_SHORT],
    ),
)
def test_each_trouble_is_named_and_its_command_fixes_it(rig: Rig, limited: Rig, name: str) -> None:
    trouble = TROUBLES[name]
    execute(rig.source_dsn, *trouble.source)
    execute(rig.target_dsn, *trouble.target)
    everything = TablePatterns(include=("public.*", "My Shop.*"))
    limited = limited.having(tables=everything)
    finding = found(limited, trouble.says)
    assert finding.severity is trouble.severity
    fix(limited, finding)
    if name in ("no column", "a trigger that always fires", "a rule that always acts"):
        assert not any(trouble.says in other.what for other in look(limited).findings)
    else:
        assert look(limited).findings == ()
    limited.prepare()


@gated
def test_partitions_of_another_owner_are_followed_and_kept_logged_once_the_command_was_run(
    rig: Rig, limited: Rig
) -> None:
    trouble = TROUBLES["another owner of a partition"]
    execute(rig.source_dsn, *trouble.source)
    execute(rig.target_dsn, *trouble.target)
    assert "a copy may not read it" in found(limited, trouble.says).what
    execute(rig.source_dsn, f'GRANT SELECT ON p1 TO "{ROLE}"')
    assert "a copy may not read it" not in found(limited, trouble.says).what
    limited.prepare()
    rig.write("INSERT INTO p VALUES (1)")
    limited.run()
    rig.write(
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (19)",
        "CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (20) TO (29)",
        f'ALTER TABLE p3 OWNER TO "{ROLE}"',
        "INSERT INTO p VALUES (11), (21)",
    )
    limited.run()
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="part of a publication"):
        rig.write("ALTER TABLE p3 SET UNLOGGED")
    fix(limited, found(limited, trouble.says))
    fix(limited, found(limited, "does not own the partition public.p2"))
    limited.run()
    for leaf in ("p1", "p2"):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="part of a publication"):
            rig.write(f"ALTER TABLE {leaf} SET UNLOGGED")
    assert rig.comparison().equal


@gated
def test_with_every_trouble_at_once_all_are_told_and_fixed_in_one_go(rig: Rig, limited: Rig) -> None:
    names = ("no right to replicate", "another owner", "no right to write", "no column", "a type that loses")
    for name in names:
        execute(rig.source_dsn, *TROUBLES[name].source)
        execute(rig.target_dsn, *TROUBLES[name].target)
    checked = look(limited)
    for name in names:
        assert any(TROUBLES[name].says in finding.what for finding in checked.findings), name
    assert not checked.is_good
    for finding in checked.findings:
        fix(limited, finding)
    assert look(limited).findings == ()


@gated
def test_types_that_missing_tables_need_are_made_before_them(rig: Rig, limited: Rig) -> None:
    execute(
        rig.source_dsn,
        'CREATE SCHEMA "My Types"',
        """CREATE TYPE "My Types".mood AS ENUM ('good', 'it''s bad')""",
        """CREATE DOMAIN moods AS "My Types".mood[] CHECK (cardinality(VALUE) < 3)""",
        "CREATE TABLE k (id int PRIMARY KEY, a moods, g int GENERATED ALWAYS AS (id * 2) STORED)",
        'ALTER TABLE t ADD COLUMN now "My Types".mood[]',
        f'GRANT USAGE ON SCHEMA "My Types" TO "{ROLE}"',
        f'ALTER TABLE k OWNER TO "{ROLE}"',
    )
    findings = look(limited).findings
    assert "the type My Types.mood is missing" in [finding.what for finding in findings]
    for finding in findings:
        fix(limited, finding)
    execute(rig.target_dsn, f'GRANT ALL ON k TO "{ROLE}"', f'GRANT USAGE ON SCHEMA "My Types" TO "{ROLE}"')
    assert look(limited).findings == ()
    generated = "SELECT attname FROM pg_attribute WHERE attrelid = 'k'::regclass AND attgenerated = 's'"
    assert rig.rows(generated) == [("g",)]


@gated
def test_a_run_needs_the_schemas_that_tables_are_in_and_with_ddl_apply_those_that_they_may_go_to(
    rig: Rig, limited: Rig
) -> None:
    rig.both("CREATE SCHEMA moved")
    execute(rig.source_dsn, f'GRANT USAGE, CREATE ON SCHEMA moved TO "{ROLE}"')
    execute(rig.target_dsn, f'ALTER TABLE t OWNER TO "{ROLE}"', f'GRANT CREATE ON SCHEMA public TO "{ROLE}"')
    limited = limited.having(tables=TablePatterns(include=("*.*",)), ddl=DdlPolicy.APPLY)
    limited.prepare()
    rig.write("ALTER TABLE t SET SCHEMA moved", "INSERT INTO moved.t (id) VALUES (1)")
    with pytest.raises(FatalError, match="may not use the schema moved"):
        limited.run()
    told = [finding for finding in look(limited).findings if "schema moved" in finding.what]
    assert [finding.severity for finding in told] == [Severity.ERROR, Severity.WARNING]
    for finding in told:
        fix(limited, finding)
    limited.run()
    assert rig.having(tables=TablePatterns(include=("*.*",))).comparison().equal


def test_what_only_a_person_knows_stands_above_the_commands(rig: Rig, limited: Rig) -> None:
    execute(rig.source_dsn, "ALTER TABLE t OWNER TO postgres")
    execute(rig.target_dsn, "DROP TABLE t")
    shown = StringIO()
    Console(file=shown, width=200).print(check_view(look(limited)))
    source, target = shown.getvalue().split("\n-- fix at the target, with psql:\n")
    assert f'-- Or connect as the owner.\nALTER TABLE "public"."t" OWNER TO "{ROLE}";' in source
    assert target.startswith("\n-- Columns and key only. ")
    assert '\nCREATE TABLE "public"."t" (' in target


@gated
def test_what_a_copy_cannot_do_is_told_beside_what_the_database_refuses(rig: Rig, limited: Rig) -> None:
    execute(rig.target_dsn, "CREATE TABLE child (id int PRIMARY KEY REFERENCES t)")
    execute(rig.target_dsn, *TROUBLES["no right to the schema"].target)
    found(limited.having(start=Start.COPY), "may not create the schema")
    found(limited.having(start=Start.COPY), "have foreign keys, which a copy in parallel cannot keep")


@gated
def test_what_a_copy_cannot_do_at_the_target_is_told_by_the_check(rig: Rig, limited: Rig) -> None:
    execute(rig.target_dsn, "CREATE TABLE child (id int PRIMARY KEY REFERENCES t)")
    limited = limited.having(start=Start.COPY)
    finding = found(limited, "have foreign keys, which a copy in parallel cannot keep")
    with pytest.raises(ConfigurationError, match="cannot keep"):
        limited.prepare()
    fix(limited, finding)
    assert look(limited).is_good
    execute(rig.target_dsn, "DROP TABLE child, t")
    limited = limited.having(create_tables=True)
    finding = found(limited, "may not create tables in the schema public")
    with pytest.raises(ConfigurationError, match="may not create tables in the schema public"):
        limited.prepare()
    fix(limited, finding)
    assert look(limited).is_good
    limited.prepare()
    assert limited.comparison().equal


@gated
def test_a_column_that_ddl_on_its_way_will_bring_is_no_finding(rig: Rig) -> None:
    rig.prepare()
    execute(rig.source_dsn, "ALTER TABLE t ADD COLUMN later int", "INSERT INTO t VALUES (1, 'x', 2)")
    for ddl in (DdlPolicy.REFUSE, DdlPolicy.APPLY):
        # The first transaction under the new definition asks for it, or makes it.
        assert look(rig.having(ddl=ddl)).findings == ()
    rig.having(ddl=DdlPolicy.APPLY).run()
    assert rig.comparison().equal


@gated
def test_warnings_are_in_the_log_of_each_run(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.both("CREATE TABLE k (a int)")
    rig.capture("run")
    said = [record for record in caplog.records if "public.k has no replica identity" in record.getMessage()]
    assert len(said) == 1
    assert said[0].levelname == "WARNING"
    assert 'ALTER TABLE "public"."k" REPLICA IDENTITY FULL' in said[0].getMessage()
    caplog.clear()
    opened = open_run(rig.config, rig.source, rig.target, owner="run", run_id="run")
    assert sum("public.k has no replica identity" in record.getMessage() for record in caplog.records) == 1
    rig.apply(opened)


@gated
def test_open_looks_at_the_source_again(rig: Rig, limited: Rig) -> None:
    limited.capture("run")
    execute(rig.source_dsn, f'ALTER ROLE "{ROLE}" NOREPLICATION')
    with pytest.raises(ConfigurationError, match="no right to replicate"):
        open_run(limited.config, limited.source, limited.target, owner="run", run_id="run")
    execute(rig.source_dsn, f'ALTER ROLE "{ROLE}" REPLICATION')
    assert lease_view("checked", limited.target).owner is None
    limited.run("run")


def test_a_first_run_that_could_not_write_its_log_is_refused_before_it_copies(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr("os.access", _refusing(tmp_path / "closed"))
    with pytest.raises(ConfigurationError, match="cannot be written"):
        rig.having(log_url=str(tmp_path / "closed" / "log"), start=Start.COPY).prepare()
    assert rig.rows("SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE '%checked'", side="source") == [
        (0,)
    ]


def test_a_side_that_cannot_be_reached_is_a_finding_and_the_other_is_looked_at(rig: Rig) -> None:
    execute(rig.target_dsn, "ALTER TABLE t DROP CONSTRAINT t_pkey")
    for changed, side in (
        (replace(rig, source_dsn="host=127.0.0.1 port=1 password=hunter2 dbname=x"), Side.SOURCE),
        (replace(rig, target_dsn="host=127.0.0.1 port=1 password=hunter2 dbname=x"), Side.TARGET),
    ):
        checked = look(changed)
        assert [finding.side for finding in checked.findings] == [side]
        assert "hunter2" not in str(checked.to_json())


@gated
@pytest.mark.parametrize(("columns", "words"), [(0, "no columns that"), (1599, "1599 columns, and staging")])
def test_a_table_that_staging_cannot_hold_is_named(rig: Rig, columns: int, words: str) -> None:
    rig.both(f"CREATE TABLE odd ({', '.join(f'c{number} int' for number in range(columns))})")
    finding = found(rig, f"public.odd has {words}")
    assert finding.severity is Severity.ERROR
    assert "exclude" in finding.note
    assert not [other for other in look(rig).findings if "missing" in other.what]


def test_a_log_that_cannot_be_written_is_told_with_the_command_that_makes_it(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", _refusing(tmp_path / "closed"))
    closed = tmp_path / "closed"
    closed.mkdir()
    rig = rig.having(log_url=f"file://{closed}/my%20log")
    finding = found(rig, "cannot be written")
    assert finding.side is Side.LOG
    fix(rig, finding)
    assert look(rig).findings == ()


def test_a_log_in_a_file_system_that_takes_no_files_is_told(rig: Rig) -> None:
    finding = found(rig.having(log_url="/proc/shop_log"), "/proc takes no files")
    assert finding.side is Side.LOG


def _refusing(directory: Path) -> Callable[[Path, int], bool]:
    """As root nothing is ever refused."""

    def access(path: Path, mode: int) -> bool:
        return path != directory

    return access


@gated
def test_a_slot_that_is_gone_is_found(rig: Rig) -> None:
    rig.prepare()
    execute(rig.source_dsn, "SELECT pg_drop_replication_slot('parallel_apply_checked')")
    assert found(rig, "changes are missing").severity is Severity.ERROR


def test_tables_with_rows_on_either_side_are_found(rig: Rig) -> None:
    execute(rig.source_dsn, "INSERT INTO t VALUES (1)")
    assert "public.t" in found(rig, "has tables with rows").what
    rig.both("TRUNCATE t")
    execute(rig.target_dsn, "INSERT INTO t VALUES (1)")
    assert found(rig, "public.t has rows").side is Side.TARGET
