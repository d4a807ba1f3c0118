"""Copies anew that are cut off, met by others, or lost by one of those that know of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.copy.postgres import recopy
from airflow_parallel_apply.pipeline.errors import LeaseBusy, PlanError, TargetError
from tests.integration.copy.recopying import again, change, require_green_and_equal, rig_of_two_tables  # noqa: F401  # a fixture
from tests.support.rig import Rig, execute
from tests.support.variants import variants


class Cut(BaseException):
    """As a kill at this line."""


@pytest.mark.parametrize(
    "line",
    variants(
        ["pass_over", "write_recopied", "require_generation"],
        seldom=["pass_over", "require_generation"],
        gated=["write_recopied"],
    ),
)
def test_cut_off_at_any_line_it_is_run_again(rig: Rig, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    require_green_and_equal(rig)
    change(rig, "captured")
    rig.capture("captured")

    def cut(*_: Any, **__: Any) -> None:
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(recopy, line, cut)
        with pytest.raises(Cut):
            again(rig, "t")
    if line == "write_recopied":
        assert not check_pipeline(rig.config, rig.source, rig.target).is_good
        with pytest.raises(TargetError, match=r"public\.t") as refused:
            rig.run()
        assert "parallel-apply recopy --pipeline p --table public.t" in (refused.value.hint or "")
        again(rig, "t")
    require_green_and_equal(rig)


def test_no_run_and_no_other_copy_goes_on_meanwhile(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.capture("owner")
    opened = rig.open("owner")
    with pytest.raises(LeaseBusy):
        again(rig, "t")
    rig.close(opened, rig.apply(opened))
    load = recopy.Recopy._load
    met: list[Exception] = []

    def meet(*arguments: Any, **named: Any) -> Sequence[int]:
        for attempt in (lambda: rig.open("another"), lambda: again(rig, "u")):
            with pytest.raises(LeaseBusy) as busy:
                attempt()
            met.append(busy.value)
        change(rig, "captured meanwhile")
        rig.capture("captures meanwhile")
        return load(*arguments, **named)

    monkeypatch.setattr(recopy.Recopy, "_load", meet)
    again(rig, "t")
    assert len(met) == 2
    require_green_and_equal(rig)


def test_a_target_restored_to_before_the_copy_is_refused(rig: Rig) -> None:
    require_green_and_equal(rig)
    again(rig, "t")
    with psycopg.connect(rig.target_dsn) as connection:
        connection.execute("DELETE FROM parallel_apply.recopy")
    with pytest.raises(TargetError, match="does not hold"):
        rig.run()


def test_a_log_that_knows_less_copies_than_the_ledger_ends_the_run(rig: Rig) -> None:
    again(rig, "t")
    execute(
        rig.target_dsn,
        "INSERT INTO parallel_apply.recopy (pipeline, schema_name, table_name, recopy_id, copied_offset, rows)"
        " SELECT pipeline, schema_name, 'u', 'newer', copied_offset, 0 FROM parallel_apply.recopy",
    )
    rig.write("UPDATE t SET v = 'behind' WHERE id = 7")
    with pytest.raises(PlanError, match="copied anew, and the log does not") as refused:
        rig.run()
    assert "recopy" in (refused.value.hint or "")
    again(rig, "u")
    require_green_and_equal(rig)
