"""A column that takes the name and the type of another one while the event trigger is off does not pass for that."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.ddl_messages import install
from tests.support.migrated_table import PLAIN, assert_equal, begin, recopied
from tests.support.rig import Rig
from tests.support.variants import gated

_OFF = "ALTER EVENT TRIGGER parallel_apply_capture_ddl DISABLE"
_ON = "ALTER EVENT TRIGGER parallel_apply_capture_ddl ENABLE ALWAYS"
_EXCHANGE = ("ALTER TABLE t DROP b", "ALTER TABLE t ADD b integer")


@pytest.fixture
def rig(rig: Rig) -> Rig:
    install(rig.source_dsn)
    begin(rig, *PLAIN)
    return rig


@gated
def test_it_stops_the_run_and_the_hint_leads_on(rig: Rig) -> None:
    # What is told before and behind it makes no difference.
    rig.write(*_EXCHANGE, _OFF, *_EXCHANGE, _ON, "INSERT INTO t VALUES (100, 'x', 7)", *_EXCHANGE)
    with pytest.raises(FatalError, match=r"a column of public\.t was dropped.*(?s:.*)recopy --pipeline p --table"):
        rig.run()
    rig.write("INSERT INTO t VALUES (101, 'x', 8)")
    # A row behind the copy is read before the source is looked at again.
    recopied(rig).write("INSERT INTO t VALUES (102, 'x', 9)")
    rig.run()
    assert_equal(rig)


def test_one_that_is_told_does_not(rig: Rig) -> None:
    rig.write("INSERT INTO t VALUES (100, 'x', 7)", "ALTER TABLE t DROP b, ADD b integer")
    rig.transaction("SAVEPOINT s", "ALTER TABLE t DROP b, ADD b integer", "INSERT INTO t VALUES (101, 'x', 8)")
    rig.write(_OFF, "ALTER TABLE t DROP b", _ON, "ALTER TABLE t ADD b integer", "INSERT INTO t VALUES (102, 'x', 9)")
    rig.run()
    assert_equal(rig)
