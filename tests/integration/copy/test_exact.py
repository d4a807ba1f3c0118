"""A copy into tables of the user's own: with the source's texts and nothing else, or red, and its hint leads on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import PipelineConfig, TablePatterns
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from tests.support.rig import Rig, execute
from tests.support.variants import gated


@dataclass(frozen=True, kw_only=True)
class Case:
    """`source`, `target`: the type of the column v. `after`: what else the target has."""

    source: str = "text"
    target: str = "text"
    values: tuple[str, ...] = ("odd", "even")
    after: tuple[str, ...] = ()
    says: tuple[str, ...] = ()


def acting(body: str, kind: str = "BEFORE INSERT") -> tuple[str, ...]:
    return (
        f"CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {body} END$$",
        f'CREATE TRIGGER "Guard" {kind} ON t FOR EACH ROW EXECUTE FUNCTION act()',
        'ALTER TABLE t ENABLE ALWAYS TRIGGER "Guard"',
    )


CASES = {
    "another text": Case(target="integer", values=("07", "8", ""), says=("column v", "id=1", "integer")),
    "blanks": Case(target="varchar(3)", values=("abc ", "abc"), says=("column v", "too long")),
    "turned away": Case(after=acting("RETURN CASE WHEN NEW.v <> 'odd' THEN NEW END;"), says=("trigger Guard",)),
    "changed": Case(after=acting("NEW.v := upper(NEW.v); RETURN NEW;"), says=("trigger Guard", "changes what is")),
    "written beside": Case(
        after=acting("INSERT INTO empty VALUES (NEW.id); RETURN NULL;", "AFTER INSERT"), says=("empty",)
    ),
}
IN_SHORT = ("another text", "changed")


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    tables = TablePatterns(include=("public.*",))
    config = PipelineConfig(pipeline="p", log_url=str(tmp_path / "log"), lanes=1, tables=tables)
    return Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_SHORT else pytest.mark.long) for name in CASES]
)
def test_a_copy_and_a_recopy_are_exact_or_red(rig: Rig, name: str) -> None:
    case = CASES[name]
    execute(rig.source_dsn, f"CREATE TABLE t (id int PRIMARY KEY, v {case.source})", "CREATE TABLE empty (id int)")
    execute(rig.target_dsn, f"CREATE TABLE t (id int PRIMARY KEY, v {case.target})", "CREATE TABLE empty (id int)")
    execute(rig.target_dsn, *case.after)
    for number, value in enumerate(case.values):
        rig.write(f"INSERT INTO t VALUES ({number + 1}, nullif('{value}', ''))")
    told = refused(rig, case)
    for statement in told.split("Run ")[1:]:
        execute(rig.target_dsn, statement.split("; ")[0].split(" at the target")[0].rstrip("."))
    if "has rows" in told:
        execute(rig.target_dsn, "TRUNCATE empty", 'ALTER TABLE t ENABLE TRIGGER "Guard"')
    rig.prepare()
    assert rig.comparison().equal
    execute(rig.target_dsn, "DROP TABLE t", f"CREATE TABLE t (id int PRIMARY KEY, v {case.target})")
    execute(rig.target_dsn, *(statement for statement in case.after if "FUNCTION act() RETURNS" not in statement))
    with pytest.raises(ParallelApplyError) as caught:
        recopy_tables(rig.config, rig.source, rig.target, [("public", "t")], report=lambda progress: None)
    for word in case.says:
        assert word in str(caught.value)


def refused(rig: Rig, case: Case) -> str:
    with pytest.raises(ParallelApplyError) as caught:
        rig.prepare()
    for word in (*case.says, "Hint: "):
        assert word in str(caught.value)
    return str(caught.value)


@gated
def test_a_column_gets_a_type_that_was_made_there_first(rig: Rig) -> None:
    """The source gave its column another enum, with a label that the former one does not have."""
    rig.both("CREATE TYPE mood AS ENUM ('sad')", "CREATE TABLE t (id int PRIMARY KEY, v mood)")
    rig.prepare()
    newer = "CREATE TYPE newer AS ENUM ('sad', 'glad')"
    rig.write(newer, "ALTER TABLE t ALTER v TYPE newer USING v::text::newer", "INSERT INTO t VALUES (1, 'glad')")
    with pytest.raises(
        ParallelApplyError, match=r"Run (SET .* END) at the target; .* lacks the type public\.newer:"
    ) as said:
        recopy_tables(rig.config, rig.source, rig.target, [("public", "t")], report=lambda _: None)
    retype = re.search(r"Run (SET .* END) at the target", str(said.value))
    assert retype is not None
    execute(rig.target_dsn, newer, retype[1])
    recopy_tables(rig.config, rig.source, rig.target, [("public", "t")], report=lambda _: None)
    rig.run()
    assert rig.comparison().equal
