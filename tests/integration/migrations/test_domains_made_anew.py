"""Domains that are made anew over another base and take the former one's name: no definition tells that."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.errors import FatalError
from tests.integration.migrations.sent_behind import assert_same, sent
from tests.support.ddl_messages import install
from tests.support.migrated_table import assert_equal, recopied
from tests.support.rig import Rig, execute
from tests.support.variants import gated

_DOMAIN = "CREATE DOMAIN d AS integer"


def remaking(base: str, column: str = "d") -> list[str]:
    return [
        "ALTER DOMAIN d RENAME TO old",
        f"CREATE DOMAIN d AS {base}",
        f"ALTER TABLE t ALTER v TYPE {column}",
        "DROP DOMAIN old",
    ]


def begun(rig: Rig, column: str, here: str, value: str) -> None:
    install(rig.source_dsn)
    rig.write(_DOMAIN, f"CREATE TABLE t (id integer PRIMARY KEY, v {column})")
    execute(rig.target_dsn, _DOMAIN, f"CREATE TABLE t (id integer PRIMARY KEY, v {here})")
    rig.prepare()
    rig.write(f"INSERT INTO t VALUES (1, {value})")
    rig.run()


@gated
@pytest.mark.parametrize(("column", "here", "value"), [("d", "text", "7"), ("d[]", "text[]", "ARRAY[7]")])
def test_a_domain_over_another_base_asks_for_a_copy(rig: Rig, column: str, here: str, value: str) -> None:
    begun(rig, column, here, value)
    rig.write(*remaking("numeric(9,2)", column))
    with pytest.raises(FatalError, match=r"no row tells .*: v \(public\.d(\[\])?, another public\.d"):
        rig.run()
    recopied(rig).run()
    rig.write(f"INSERT INTO t VALUES (2, {value})")
    rig.run()
    assert_equal(rig)


@gated
@pytest.mark.parametrize("are_sent", [True, False])
def test_a_domain_that_is_made_anew_is_followed_if_it_is_sent_or_over_the_same_base(rig: Rig, are_sent: bool) -> None:
    begun(rig, "d", "d", "7")
    steps = remaking("numeric(9,2)" if are_sent else "integer")
    rig.transaction(*(sent(*steps) if are_sent else steps))
    rig.run()
    rig.write("INSERT INTO t VALUES (2, 7)")
    rig.run()
    assert_same(rig, "t")
