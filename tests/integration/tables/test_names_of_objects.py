"""Values that are names of objects change without a row being sent: such columns are refused, by name."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.rig import Rig, execute
from tests.support.variants import gated

_NAMES = ("regclass", "regproc", "regprocedure", "regoper", "regoperator", "regtype", "regrole", "regnamespace")
_REFUSED = r"public\.t has the column {} as {}, whose values are names of objects"


def test_every_column_with_names_of_objects_in_it_is_named(rig: Rig) -> None:
    within = {
        "named": "CREATE DOMAIN named AS regclass",
        "named_pair": "CREATE TYPE named_pair AS (a integer, b named[])",
        "types": "CREATE DOMAIN types AS regtype[]",
        "named_range": "CREATE TYPE named_range AS RANGE (subtype = regclass, subtype_opclass = oid_ops)",
    }
    harmless = ("oid", "name", "xid", "oidvector", "regclass_like")
    types = (*_NAMES, "regconfig", "regdictionary", "regcollation", "aclitem", "regclass[]", "named_range[]", *within)
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate((*types, *harmless)))
    create = f"CREATE TABLE t (id integer PRIMARY KEY, {columns})"
    execute(rig.source_dsn, *within.values(), "CREATE DOMAIN regclass_like AS text", create)
    found = [
        one for one in check_pipeline(rig.config, rig.source, rig.target).findings if "are names of objects" in one.what
    ]
    assert [one.what.split()[4] for one in found] == [f"c{number}" for number in range(len(types))]
    assert [bool(one.fix) for one in found] == [
        kind not in within and not kind.startswith("named_range") for kind in types
    ]


@gated
@pytest.mark.parametrize(
    ("kind", "plain", "value"), [("regclass", "text", "'x'"), ("regclass[]", "text[]", "'{x,NULL}'")]
)
def test_following_the_hint_ends_equal_whatever_is_renamed(rig: Rig, kind: str, plain: str, value: str) -> None:
    rig.both("CREATE TABLE x (id integer)", f"CREATE TABLE t (id integer PRIMARY KEY, v {kind})")
    execute(rig.source_dsn, f"INSERT INTO t VALUES (1, {value})")
    with pytest.raises(FatalError, match=_REFUSED.format("v", kind.replace("[", r"\["))) as refused:
        rig.prepare()
    alter = f'ALTER TABLE "public"."t" ALTER COLUMN "v" TYPE {plain}'
    assert alter in str(refused.value)
    rig.both(alter)
    rig.prepare()
    rig.write("INSERT INTO t SELECT 2, v FROM t")
    rig.both("ALTER TABLE x RENAME TO y")
    rig.write("INSERT INTO t SELECT 3, v FROM t WHERE id = 1")
    rig.run()
    assert rig.comparison().equal


@gated
def test_such_a_column_that_is_added_later_stops_the_next_run(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)")
    rig.prepare()
    rig.write("ALTER TABLE t ADD v regtype", "INSERT INTO t VALUES (1, 'integer')")
    with pytest.raises(FatalError, match=_REFUSED.format("v", "regtype")):
        rig.run()
    rig.write("ALTER TABLE t DROP v")
    rig.run()
    assert rig.comparison().equal
