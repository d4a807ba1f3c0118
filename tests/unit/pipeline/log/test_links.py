from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.log.links import link
from airflow_parallel_apply.pipeline.model.change import LAST_SEQNO, NO_SEQNO
from tests.log_batches import Change, rows_batch
from tests.support.examples import examples


def linked(changes: list[Change]) -> list[tuple[int, int]]:
    previous, following = link(pa.Table.from_batches([rows_batch(changes)]))
    return list(zip(previous.tolist(), following.tolist(), strict=True))


@st.composite
def histories(draw: st.DrawFn) -> list[Change]:
    changes: list[Change] = []
    for seqno in range(draw(st.integers(1, 12))):
        fragno = 0
        for _ in range(draw(st.integers(0, 5))):
            relation_id = draw(st.integers(1, 2))
            key = draw(st.sampled_from([None, "1", "2", "3"]))
            unsent = draw(st.sampled_from([None, None, None, None, (0,)]))
            if key is not None and draw(st.booleans()):
                new_key = draw(st.sampled_from(["1", "2", "3"]))
                changes += [
                    Change(seqno=seqno, fragno=fragno, key=key, operation="X", relation_id=relation_id),
                    Change(
                        seqno=seqno,
                        fragno=fragno + 1,
                        key=new_key,
                        operation="K",
                        relation_id=relation_id,
                        unsent=unsent,
                    ),
                ]
                fragno += 2
            else:
                changes.append(
                    Change(seqno=seqno, fragno=fragno, key=key, relation_id=relation_id, unsent=unsent if key else None)
                )
                fragno += 1
    return changes


def needs_every_change(changes: list[Change]) -> set[tuple[int, str | None]]:
    keys = {(change.relation_id, change.key) for change in changes if change.unsent is not None}
    for left, arrived in pairwise(changes):
        if arrived.operation == "K" and arrived.unsent is not None:
            keys.add((left.relation_id, left.key))
    return keys


@settings(max_examples=examples(300), deadline=None)
@given(histories(), st.integers(-1, 12), st.integers(-1, 12))
def test_the_filter_on_links_keeps_the_first_and_the_last_change_of_each_key_and_nothing_else(
    changes: list[Change], first: int, second: int
) -> None:
    after, last = min(first, second), max(first, second)
    if not changes:
        return
    kept = defaultdict(list)
    present = defaultdict(list)
    for change, (previous, following) in zip(changes, linked(changes), strict=True):
        if not after < change.seqno <= last:
            continue
        key = (change.relation_id, change.key)
        present[key].append(change)
        if previous <= after or following > last:
            kept[key].append(change)
    whole = needs_every_change(changes)
    for key, of_key in present.items():
        if key[1] is None or key in whole:
            assert kept[key] == of_key
        else:
            assert kept[key] == ([of_key[0], of_key[-1]] if len(of_key) > 1 else of_key)


def test_rows_of_one_key_in_one_transaction_supersede_each_other_at_their_own_seqno() -> None:
    changes = [Change(seqno=5, fragno=fragno, key="1") for fragno in range(3)]
    assert linked(changes) == [(NO_SEQNO, 5), (5, 5), (5, LAST_SEQNO)]


def test_the_same_key_of_two_relations_is_two_keys() -> None:
    changes = [Change(seqno=seqno, fragno=0, key="1", relation_id=seqno % 2) for seqno in range(4)]
    assert linked(changes) == [(NO_SEQNO, 2), (NO_SEQNO, 3), (0, LAST_SEQNO), (1, LAST_SEQNO)]


def test_statements_and_rows_without_a_key_have_no_links() -> None:
    changes = [Change(seqno=0, fragno=0, key=None), Change(seqno=1, fragno=0, key=None, operation="T")]
    assert linked(changes) == [(NO_SEQNO, LAST_SEQNO)] * 2


def test_the_empty_key_is_a_key() -> None:
    assert linked([Change(seqno=seqno, fragno=0, key="") for seqno in (1, 2)]) == [(NO_SEQNO, 2), (1, LAST_SEQNO)]
