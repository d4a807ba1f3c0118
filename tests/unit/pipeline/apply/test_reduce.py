"""Net changes against a model that applies every change, row by row."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.apply.net_changes import NetChanges
from airflow_parallel_apply.pipeline.apply.reduce import Reducer
from airflow_parallel_apply.pipeline.errors import LogError, TargetError
from airflow_parallel_apply.pipeline.model.change import LAST_SEQNO, NO_SEQNO
from airflow_parallel_apply.pipeline.model.copy_text import line, values_of
from airflow_parallel_apply.pipeline.target.postgres.staging.staging_text import staging_text
from tests.support.examples import examples
from tests.support.log_rows import Row, batch, clustered, key_of, relation

TABLE = relation(1, "t", "k a b", key="k")
KEYLESS = relation(2, "h", "a b")
RELATIONS = {1: TABLE, 2: KEYLESS}

Values = tuple[str | None, ...]
Rows = dict[str, Values]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A table before a unit, the unit's rows, and the table after it."""

    before: Rows
    rows: tuple[Row, ...]
    after: Rows
    last_seqno: int


@st.composite
def histories(draw: st.DrawFn) -> History:
    keys = ["1", "2", "3"]
    state: Rows = {key: (key, "old", None) for key in keys if draw(st.booleans())}
    before = dict(state)
    rows: list[Row] = []
    seqno, fragno = 0, 0
    for step in range(draw(st.integers(0, 14))):
        if draw(st.booleans()):
            seqno, fragno = seqno + 1, 0
        key = draw(st.sampled_from(keys))
        new: Values = (key, f"a{step}", draw(st.sampled_from([f"b{step}", None])))
        fragno += 2
        free = [other for other in keys if other not in state]
        if key not in state:
            rows.append(Row(seqno=seqno, fragno=fragno, operation="I", values=new))
            state[key] = new
        elif free and draw(st.integers(0, 3)) == 0:
            arrived: Values = (free[0], *new[1:])
            rows.append(Row(seqno=seqno, fragno=fragno, operation="X", values=(key, None, None)))
            rows.append(Row(seqno=seqno, fragno=fragno + 1, operation="K", values=arrived, old_key=(key,)))
            del state[key]
            state[free[0]] = arrived
        elif draw(st.booleans()):
            unsent = sorted(draw(st.sets(st.sampled_from([1, 2]))))
            sent = [None if index in unsent else value for index, value in enumerate(new)]
            rows.append(Row(seqno=seqno, fragno=fragno, operation="U", values=sent, unsent=unsent or None))
            state[key] = tuple(state[key][index] if index in unsent else value for index, value in enumerate(new))
        else:
            rows.append(Row(seqno=seqno, fragno=fragno, operation="D", values=(key, None, None)))
            del state[key]
    return History(before=before, rows=tuple(rows), after=state, last_seqno=seqno)


def linked(rows: tuple[Row, ...], last_of_segment: set[int]) -> list[Row]:
    """Fill the links as a log writer does, segment by segment (given by their last seqnos)."""
    done: list[Row] = []
    segment: list[Row] = []

    def close() -> None:
        for key in {key_of(TABLE, row) for row in segment}:
            chain = [row for row in segment if key_of(TABLE, row) == key]
            if any(row.unsent for row in chain):
                done.extend(chain)
                continue
            for index, row in enumerate(chain):
                done.append(
                    replace(
                        row,
                        previous_seqno=chain[index - 1].seqno if index else NO_SEQNO,
                        next_seqno=chain[index + 1].seqno if index + 1 < len(chain) else LAST_SEQNO,
                    )
                )
        segment.clear()

    for row in rows:
        if segment and segment[-1].seqno != row.seqno and segment[-1].seqno in last_of_segment:
            close()
        segment.append(row)
    close()
    return done


def reduced(rows: list[Row], *, batch_rows: int) -> list[NetChanges]:
    reducer = Reducer(TABLE)
    found: list[NetChanges] = []
    for part in clustered(RELATIONS, rows, batch_rows=batch_rows):
        found.extend(reducer.feed(part))
    found.extend(reducer.finish())
    return found


def merged(before: Rows, changes: list[NetChanges]) -> Rows:
    """Do what the SQL merge does, and refuse what it refuses."""
    table = dict(before)
    seen: set[str | None] = set()
    for change in changes:
        for index, values in enumerate(map(values_of, change.values.to_pylist())):
            key = values[0]
            assert key not in seen
            seen.add(key)
            match chr(change.operations[index]):
                case "I":
                    assert key not in table
                    table[key] = tuple(values)
                case "D":
                    del table[key]
                case _:
                    marks = change.unsent[index].as_py() if change.unsent is not None else "000"
                    old = table[key]
                    table[key] = tuple(old[i] if marks[i] == "1" else value for i, value in enumerate(values))
    return table


@settings(max_examples=examples(400), deadline=None)
@given(history=histories(), batch_rows=st.integers(1, 20), segments=st.sets(st.integers(0, 14)), filtered=st.booleans())
def test_net_changes_lead_where_the_single_changes_lead(
    history: History, batch_rows: int, segments: set[int], filtered: bool
) -> None:
    rows = linked(history.rows, segments)
    after_seqno, last_seqno = -1, history.last_seqno
    if filtered:
        rows = [row for row in rows if row.previous_seqno <= after_seqno or row.next_seqno > last_seqno]
    assert merged(history.before, reduced(rows, batch_rows=batch_rows)) == history.after


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 100])
def test_a_chain_of_key_changes_in_one_transaction(batch_rows: int) -> None:
    rows = [
        Row(seqno=1, fragno=0, operation="X", values=("2", None, None)),
        Row(seqno=1, fragno=1, operation="K", values=("3", "two", None), old_key=("2",)),
        Row(seqno=1, fragno=2, operation="X", values=("1", None, None)),
        Row(seqno=1, fragno=3, operation="K", values=("2", "one", None), old_key=("1",)),
    ]
    before: Rows = {"1": ("1", "one", None), "2": ("2", "two", None)}
    after = merged(before, reduced(rows, batch_rows=batch_rows))
    assert after == {"2": ("2", "one", None), "3": ("3", "two", None)}


@pytest.mark.parametrize(("first", "second"), [("I", "I"), ("D", "U"), ("D", "D"), ("U", "I")])
def test_neighbouring_changes_that_contradict_each_other_are_refused(first: str, second: str) -> None:
    rows = [
        Row(seqno=3, operation=first, values=("7", "a", "b"), next_seqno=4),
        Row(seqno=4, operation=second, values=("7", "a", "b"), previous_seqno=3),
    ]
    with pytest.raises(TargetError, match=rf"key 7: operation {second} cannot follow {first} at seqno 3") as caught:
        reduced(rows, batch_rows=10)
    assert (caught.value.seqno, caught.value.table) == (4, "public.t")


def test_changes_out_of_order_are_refused() -> None:
    rows = [
        Row(seqno=4, operation="U", values=("7", "a", "b")),
        Row(seqno=3, operation="U", values=("7", "a", "b")),
    ]
    with pytest.raises(LogError, match="not in order"):
        list(Reducer(TABLE).feed(batch(RELATIONS, rows)))
    reducer = Reducer(TABLE)
    list(reducer.feed(batch(RELATIONS, rows[:1])))
    with pytest.raises(LogError, match="not in order"):
        list(reducer.feed(batch(RELATIONS, rows[1:])))


def test_a_key_change_with_unsent_columns_cannot_be_reduced() -> None:
    row = Row(seqno=4, operation="K", values=("7", None, "b"), unsent=(1,), old_key=("6",))
    with pytest.raises(LogError, match="can only be replayed"):
        reduced([row], batch_rows=1)


def test_an_insert_whose_column_was_never_sent_is_refused() -> None:
    rows = [
        Row(seqno=1, operation="K", values=("7", "a", "b"), old_key=("6",)),
        Row(seqno=2, operation="D", values=("7", None, None)),
        Row(seqno=3, operation="I", values=("7", "a", "b")),
        Row(seqno=4, operation="D", values=("7", None, None)),
        Row(seqno=5, operation="U", values=("7", "a", None), unsent=(2,)),
    ]
    with pytest.raises(LogError, match="never sent"):
        reduced(rows, batch_rows=1)


def test_statements_and_foreign_widths_are_refused() -> None:
    with pytest.raises(LogError, match="operation T"):
        list(Reducer(TABLE).feed(batch(RELATIONS, [Row(seqno=1, operation="T", values=("1", "2", "3"))])))
    with pytest.raises(LogError, match="has not 3 values"):
        list(Reducer(TABLE).feed(batch(RELATIONS, [Row(seqno=1, operation="I", values=("1", "2"))])))


def test_rows_without_a_key_are_all_inserts() -> None:
    rows = [Row(seqno=n, operation="I", values=("x", None), relation_id=2) for n in range(3)]
    (found,) = Reducer(KEYLESS).feed(batch(RELATIONS, rows))
    assert found.values.to_pylist() == [line(("x", None))] * 3
    with pytest.raises(LogError, match="without a key"):
        list(Reducer(KEYLESS).feed(batch(RELATIONS, [Row(seqno=9, operation="D", values=("x", None), relation_id=2)])))


def test_a_hot_key_is_carried_in_one_row_over_many_batches() -> None:
    reducer = Reducer(TABLE)
    for seqno in range(200):
        rows = [Row(seqno=seqno, operation="U", values=("7", str(seqno), None), unsent=(2,))]
        assert list(reducer.feed(batch(RELATIONS, rows))) == []
    (found,) = reducer.finish()
    assert (found.values.to_pylist(), found.unsent.to_pylist()) == ([line(("7", "199", None))], ["001"])


def test_copy_text_has_the_operation_before_the_line_and_the_bitmap_behind() -> None:
    rows = [
        Row(seqno=1, operation="U", values=("1", "a\tb", None), unsent=(2,)),
        Row(seqno=2, operation="I", values=("2", "", None)),
        Row(seqno=3, operation="D", values=("3", None, None)),
    ]
    reducer = Reducer(TABLE)
    found = [*reducer.feed(batch(RELATIONS, rows)), *reducer.finish()]
    text = b"".join(bytes(staging_text(changes, with_unsent=True)) for changes in found)
    assert text.decode() == "U\t1\ta\\tb\t\\N\t001\nI\t2\t\t\\N\t000\nD\t3\t\\N\t\\N\t\\N\n"
