"""A run's bound that was known when it opened, and is lost with the target's last commits."""

from __future__ import annotations

from tests.support.rig import Rig, execute


def test_lanes_that_had_nothing_to_capture_capture_once_the_bound_is_lost(rig: Rig) -> None:
    rig.both("CREATE TABLE t (id integer PRIMARY KEY)")
    rig.prepare()
    rig.write("INSERT INTO t SELECT generate_series(1, 100)")
    rig.capture("run")
    opened = rig.open("run")
    assert opened.until_seqno is not None
    # Both were made after the generation, which the target still has.
    execute(rig.target_dsn, "UPDATE parallel_apply.run SET until_seqno = NULL", "DELETE FROM parallel_apply.task")
    rig.close(opened, rig.apply(opened))
    assert rig.comparison().equal
