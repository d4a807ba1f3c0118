"""The ways of a merge point, and which refusal is told."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from airflow_parallel_apply.pipeline.apply.merges import Merges
from airflow_parallel_apply.pipeline.errors import Conflict, TargetError
from airflow_parallel_apply.pipeline.model.position import Position
from airflow_parallel_apply.pipeline.target.steps import Merge, Replay


@pytest.mark.parametrize(
    ("refused", "tried"), [(Conflict("as a set"), [Merge, Replay]), (TargetError("a NULL"), [Merge])]
)
def test_what_the_last_way_meets_does_not_hide_the_reason_and_only_a_conflict_takes_it(
    refused: TargetError, tried: list[type]
) -> None:
    context = MagicMock()
    context.ledger.epochs.return_value = []
    context.routing.colocation = ()
    context.unit.return_value = SimpleNamespace(token="t", last_seqno=9, row_count=2)
    context.commit.side_effect = [refused, Conflict("one by one")]
    positions = [Position(channel=at, seqno=seqno, generation=1, claim=None) for at, seqno in enumerate((9, 3))]
    with pytest.raises(TargetError) as raised:
        Merges(context).bring(positions, 9, "t")
    assert raised.value is refused
    assert [type(step) for call in context.commit.call_args_list for step in call.args[1]] == tried
