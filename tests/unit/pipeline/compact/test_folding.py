"""Folding a table's changes: what is left is what a database would have, in however little memory, in any order."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.errors import EncodeError
from airflow_parallel_apply.pipeline.model.change import ReplicaIdentity
from airflow_parallel_apply.pipeline.model.copy_text import line
from tests.unit.pipeline.compact.folding import KEYED, Row, folded, values

IMAGED = replace(
    KEYED,
    replica_identity=ReplicaIdentity.FULL,
    columns=tuple(replace(column, key=False) for column in KEYED.columns),
)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[tuple[int, int, Row]], dict[tuple[int, float], Any]]:
    """Changes of a table with a key of two columns, and the rows that they leave."""
    rows: list[tuple[int, int, Row]] = []
    live: dict[tuple[int, float], tuple[str | None, str | None]] = {}
    keys = st.tuples(st.integers(0, 3), st.sampled_from([0.00001, 1.5]))
    texts = st.sampled_from([None, "", "x", "long\tand\\wide"])
    octets = st.sampled_from([None, r"\x", r"\x00ff"])
    for seqno in range(draw(st.integers(0, 25))):
        for fragno in range(draw(st.integers(1, 3))):
            key, v, w = draw(keys), draw(texts), draw(octets)
            if draw(st.integers(0, 30)) == 0:
                live.clear()
                rows.append((seqno, fragno, Row("T", (None,) * 4)))
            elif key not in live:
                live[key] = v, w
                rows.append((seqno, fragno, Row("I", values(key, v, w))))
            elif draw(st.booleans()):
                mark = draw(st.sampled_from([None, "0010", "0001", "0011"]))
                kept = live[key]
                sent = tuple(
                    None if mark is not None and mark[2 + place] == "1" else one for place, one in enumerate((v, w))
                )
                live[key] = tuple(  # type: ignore[assignment]
                    kept[place] if mark is not None and mark[2 + place] == "1" else one
                    for place, one in enumerate((v, w))
                )
                new = draw(keys)
                if new in live:
                    rows.append((seqno, fragno, Row("U", values(key, *sent), mark)))  # type: ignore[arg-type]
                else:
                    old = line([str(key[0]), "1e-05" if key[1] == 0.00001 else "1.5"])
                    live[new] = live.pop(key)
                    rows.append((seqno, fragno, Row("X", values(key, None, None))))
                    rows.append((seqno, fragno, Row("K", values(new, *sent), mark, old)))  # type: ignore[arg-type]
            else:
                del live[key]
                rows.append((seqno, fragno, Row("D", values(key, None, None))))
    return rows, live


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=histories(), data=st.data())
def test_what_is_left_is_what_a_database_has(history: Any, data: st.DataObject, tmp_path: Path) -> None:
    rows, live = history
    files = []
    for place, row in enumerate(rows):
        if place == 0 or data.draw(st.integers(0, 4)) == 0:
            files.append((KEYED, []))
        files[-1][1].append(row)
    files = data.draw(st.permutations(files))
    if not files:
        return
    found = folded(files, tmp_path, memory_bytes=data.draw(st.sampled_from([3_000, 2**30])))
    wanted = {(a, b, v, None if w is None else bytes.fromhex(w.removeprefix(r"\x"))) for (a, b), (v, w) in live.items()}
    assert len(found) == len(wanted)
    assert set(found) == wanted
    assert not list(tmp_path.iterdir()), "what was spilled is gone"


def test_rows_of_the_initial_copy_are_rows(tmp_path: Path) -> None:
    copied = [(0, place, Row("I", values((place, 1.5), "x", None))) for place in range(2)]
    changed = [(1, 0, Row("U", values((1, 1.5), None, None), "0010"))]
    found = folded([(KEYED, copied), (KEYED, changed)], tmp_path, copied_through=0)
    assert sorted(found) == [(0, 1.5, "x", None), (1, 1.5, "x", None)]


@pytest.mark.parametrize("memory_bytes", [1, 2**30])
def test_equal_rows_without_a_key_are_counted(tmp_path: Path, memory_bytes: int) -> None:
    one, other = values((1, 1.5), "x", None), values((1, 1.5), None, "")
    other = (*other[:3], r"\x01")
    operations = [("I", one)] * 5 + [("I", other)] * 2 + [("D", one)] * 3
    rows = [(seqno, 0, Row(operation, found)) for seqno, (operation, found) in enumerate(operations)]
    found = folded([(IMAGED, rows[4:]), (IMAGED, rows[:4])], tmp_path, memory_bytes=memory_bytes)
    assert Counter(found) == {(1, 1.5, "x", None): 2, (1, 1.5, None, b"\x01"): 2}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([Row("U", values((1, 1.5), "x", None))], r"never inserted: \(1, 1.5\)"),
        ([Row("D", values((1, 1.5), None, None))], "never inserted"),
    ],
)
def test_a_feed_that_begins_behind_a_row_is_refused(tmp_path: Path, rows: list[Row], said: str) -> None:
    with pytest.raises(EncodeError, match=said):
        folded([(KEYED, [(place, 0, row) for place, row in enumerate(rows)])], tmp_path)
