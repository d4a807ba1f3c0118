"""Work that goes on beside other work."""

from __future__ import annotations

import threading

from airflow_parallel_apply.pipeline.apply.periodic import every


def test_a_step_that_fails_is_tried_again_and_none_is_made_behind_the_block() -> None:
    made, again = [0], threading.Event()

    def step() -> None:
        made[0] += 1
        if made[0] == 1:
            raise RuntimeError("once")
        again.set()

    with every(0.001, step, name="beside"):
        assert again.wait(60), "no step behind one that failed"
    assert not any(thread.name == "beside" for thread in threading.enumerate())
