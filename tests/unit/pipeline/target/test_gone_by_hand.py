"""Targets that do not read conditions of PostgreSQL stop where rows went with a partition, and say what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import PlanError
from airflow_parallel_apply.pipeline.model.change import Column, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.model.gone_rows import GoneRows
from airflow_parallel_apply.pipeline.target.feed_rows import require_unaltered
from airflow_parallel_apply.pipeline.target.gone_by_hand import require_none_gone
from airflow_parallel_apply.pipeline.target.steps import Redefine, Remove, Statement

ROWS = GoneRows(relation_id=1, condition="(id < 10)", keys=((1, "id", "integer"),))


def relation(number: int, name: str = "id", type_name: str = "integer") -> Relation:
    column = Column(name=name, type_name=type_name, number=1)
    identity = ReplicaIdentity.FULL
    return Relation(relation_id=number, schema="public", table="t", replica_identity=identity, columns=(column,))


def removal(ddl: DdlPolicy) -> Remove:
    return Remove(rows=ROWS, ddl=ddl, end_offset=7, shown_end="0/7")


def test_the_form_in_a_log_is_read_as_it_was_written() -> None:
    assert GoneRows.from_text(ROWS.to_text()) == ROWS


def test_they_are_those_of_a_definition_with_the_same_columns() -> None:
    assert ROWS.is_of(relation(2))
    assert not ROWS.is_of(relation(2, name="other"))
    assert not ROWS.is_of(relation(2, type_name="bigint"))


@pytest.mark.parametrize("policy", [DdlPolicy.REFUSE, DdlPolicy.APPLY])
@pytest.mark.parametrize("is_feed", [True, False])
def test_a_removal_stops_before_any_other_step_and_tells_what_else_a_skip_takes_as_done(
    policy: DdlPolicy, is_feed: bool
) -> None:
    redefine = Redefine(older_id=1, newer_id=2, ddl=policy, end_offset=7)
    steps = [Statement(text="CREATE INDEX ON t (id)", end_offset=7), redefine, removal(policy)]
    with pytest.raises(
        PlanError, match=r"rows of public\.t went with a partition(?s:.*)they meet \(id < 10\)"
    ) as caught:
        require_none_gone(steps, relation, is_feed=is_feed)
    hint = caught.value.hint or ""
    assert ("To start anew" in hint) is is_feed
    assert "run once with ddl=skip and until=0/7" in hint
    assert "CREATE INDEX ON t (id)" in hint
    assert "the definition of public.t" in hint
    assert "behind it" not in hint
    with pytest.raises(PlanError) as caught:
        require_none_gone([replace(removal(policy), is_behind_rows=True)], relation, is_feed=is_feed)
    assert "behind it delete those that meet this" in (caught.value.hint or "")


def test_somebody_may_say_that_they_were_deleted() -> None:
    require_none_gone([removal(DdlPolicy.SKIP)], relation, is_feed=False)


def test_no_feed_passes_it_over() -> None:
    with pytest.raises(PlanError, match="went with a partition"):
        require_unaltered([removal(DdlPolicy.APPLY)], relation)
