"""Folding a table's changes: what is left is what a database would have, in however little memory, in any order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.compact.files.lineage import lineages
from airflow_parallel_apply.pipeline.compact.files.table import TableInput
from airflow_parallel_apply.pipeline.encode.columns.rows import row_typing, typed_rows
from airflow_parallel_apply.pipeline.encode.files.manifest import DataFile
from airflow_parallel_apply.pipeline.errors import EncodeError
from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.model.change import Column, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.model.copy_text import line
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.model.value_type import ValueType

KEYED = Relation(
    relation_id=3,
    schema="public",
    table="t",
    replica_identity=ReplicaIdentity.KEY,
    columns=(
        Column(name="a", type_name="integer", key=True, number=1, value=ValueType.parse("integer 32")),
        Column(name="b", type_name="double precision", key=True, number=2, value=ValueType.parse("float 64")),
        Column(name="v", type_name="text", number=3, value=ValueType.parse("text")),
        Column(name="w", type_name="bytea", number=4, value=ValueType.parse("bytes")),
    ),
    oid=7,
)
IMAGED = replace(
    KEYED,
    replica_identity=ReplicaIdentity.FULL,
    columns=tuple(replace(column, key=False) for column in KEYED.columns),
)


@dataclass(frozen=True)
class Row:
    """One change as a log has it."""

    operation: str
    values: tuple[str | None, ...]
    unsent: str | None = None
    old_key: str | None = None


def batch(relation: Relation, rows: list[tuple[int, int, Row]], copied_through: int) -> pa.RecordBatch:
    """Typed, as a file of the feed has them."""
    filled = {
        "seqno": [seqno for seqno, _, _ in rows],
        "fragno": [fragno for _, fragno, _ in rows],
        "operation": [row.operation for _, _, row in rows],
        "values": [line(row.values) for _, _, row in rows],
        "unsent": [row.unsent for _, _, row in rows],
        "old_key": [row.old_key for _, _, row in rows],
    }
    zeros = np.zeros(len(rows), dtype=np.int64)
    arrays = [
        pa.array(filled[one.name], one.type) if one.name in filled else pa.array(zeros).cast(one.type) for one in ROWS
    ]
    moments = pa.array(zeros, pa.timestamp("us", tz="UTC"))
    return typed_rows(
        pa.record_batch(arrays, schema=ROWS), row_typing(relation), moments, copied_through=copied_through
    )


def folded(
    files: list[tuple[Relation, list[tuple[int, int, Row]]]],
    directory: Path,
    *,
    memory_bytes: int = 2**30,
    copied_through: int = -1,
) -> list[tuple[Any, ...]]:
    """The values of the rows that are left."""
    named = [
        DataFile(
            path=str(place),
            table=relation.name,
            relation_id=relation.relation_id,
            rows=len(rows),
            bytes_=0,
            first_seqno=0,
            last_seqno=0,
            checksum="",
        )
        for place, (relation, rows) in enumerate(files)
    ]
    ((lineage,), replaced) = lineages({relation.relation_id: relation for relation, _ in files}.values(), named)
    assert not replaced
    table = TableInput(
        lineage=lineage,
        typing=row_typing(lineage.newest),
        files=tuple(named),
        opened=lambda file: iter([batch(*files[int(file.path)], copied_through)]),
        memory_bytes=memory_bytes,
        directory=directory,
    )
    batches = list(table.rows())
    assert all(set(one.column("_operation").to_pylist()) <= {"insert"} for one in batches)
    width = len(lineage.newest.columns)
    return [tuple(row.values()) for one in batches for row in one.select(list(range(width))).to_pylist()]


def values(key: tuple[int, float], v: str | None, w: str | None) -> tuple[str | None, ...]:
    return (str(key[0]), f"{key[1]:g}", v, w)


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


def redefined(**changes: Any) -> Relation:
    """The table with another column behind, or other changes."""
    more = Column(name="more", type_name="text", number=5, value=ValueType.parse("text"), **changes)
    return replace(KEYED, relation_id=4, columns=(*KEYED.columns[:3], more))


OLD = [(0, 0, Row("I", values((1, 1.5), "x", None))), (1, 0, Row("I", values((2, 1.5), "y", None)))]


@pytest.mark.parametrize(("fill", "value"), [("NULL", None), ("'it''s'", "it's"), (r"E'a\\b'", "a\\b")])
def test_older_rows_have_what_a_new_column_is_filled_with(tmp_path: Path, fill: str, value: str | None) -> None:
    newest = redefined(fill=fill)
    new = [(2, 0, Row("U", ("2", "1.5", "z", None), "0001"))]
    found = folded([(KEYED, OLD), (newest, new)], tmp_path)
    assert sorted(found) == [(1, 1.5, "x", value), (2, 1.5, "z", value)]


def test_the_definition_that_brought_a_column_says_what_older_rows_have_in_it(tmp_path: Path) -> None:
    brought = redefined(fill="'7'")
    wide = replace(redefined(fill=None), relation_id=5)
    short = replace(wide.columns[3], type_name="character varying(1)")
    for later, text in ((wide, "7"), (replace(wide, columns=(*wide.columns[:3], short)), "7")):
        new = [(2, 0, Row("U", ("2", "1.5", "z", "9")))]
        assert sorted(folded([(KEYED, OLD), (brought, []), (later, new)], tmp_path)) == [
            (1, 1.5, "x", text),
            (2, 1.5, "z", "9"),
        ]
    cut = replace(wide, columns=(*wide.columns[:3], short))
    with pytest.raises(EncodeError, match=r"public\.t\.more holds in \(1, 1\.5\)"):
        folded(
            [(KEYED, OLD), (redefined(fill="'77'"), []), (cut, [(2, 0, Row("U", ("2", "1.5", "z", "9")))])], tmp_path
        )


def test_a_value_that_nothing_tells_is_asked_for_by_name(tmp_path: Path) -> None:
    newest = redefined()
    new = [(2, 0, Row("U", ("2", "1.5", "z", "told")))]
    with pytest.raises(EncodeError, match=r"public\.t\.more holds in \(1, 1\.5\)"):
        folded([(KEYED, OLD), (newest, new)], tmp_path)
    told = [
        (
            3,
            0,
            Row(
                "U",
                (
                    "1",
                    "1.5",
                    "z",
                    "told",
                ),
            ),
        )
    ]
    assert len(folded([(KEYED, OLD), (newest, new + told)], tmp_path)) == 2


def test_rows_are_told_apart_by_another_key_from_then_on(tmp_path: Path) -> None:
    newest = replace(
        KEYED,
        relation_id=4,
        columns=(KEYED.columns[0], replace(KEYED.columns[1], key=False, name="c"), *KEYED.columns[2:]),
    )
    new = [(2, 0, Row("U", ("2", "7", None, None), "0010")), (3, 0, Row("D", ("1", None, None, None)))]
    assert folded([(newest, new), (KEYED, OLD)], tmp_path) == [(2, 7.0, "y", None)]


@pytest.mark.parametrize("memory_bytes", [1, 2**30])
def test_a_value_that_nothing_tells_is_asked_for_where_rows_are_only_inserted(
    tmp_path: Path, memory_bytes: int
) -> None:
    first, last = (
        replace(one, columns=tuple(replace(column, key=False) for column in one.columns))
        for one in (KEYED, redefined(fill=None))
    )
    told = [(2, 0, Row("I", ("3", "1.5", "z", "told")))]
    with pytest.raises(EncodeError, match=r"public\.t\.more holds"):
        folded([(first, OLD), (last, told)], tmp_path, memory_bytes=memory_bytes)
    assert len(folded([(last, told)], tmp_path, memory_bytes=memory_bytes)) == 1


def test_rows_that_came_again_under_another_key_tell_what_those_before_did_not(tmp_path: Path) -> None:
    brought = redefined(fill=None)
    moved = replace(
        brought,
        relation_id=5,
        columns=(brought.columns[0], replace(brought.columns[1], key=False), *brought.columns[2:]),
    )
    other = [(2, 0, Row("I", ("3", "1.5", "z", "told")))]
    again = [(seqno, 0, Row("U", (str(seqno - 2), "1.5", "z", f"told {seqno}"))) for seqno in (3, 4)]
    with pytest.raises(EncodeError, match=r"public\.t\.more holds in \(2\)"):
        folded([(KEYED, OLD), (brought, other), (moved, again[:1])], tmp_path)
    found = folded([(KEYED, OLD), (brought, other), (moved, again)], tmp_path)
    assert sorted(row[3] for row in found) == ["told", "told 3", "told 4"]
    by_it = replace(
        moved, columns=(replace(moved.columns[0], key=False), *moved.columns[1:3], replace(moved.columns[3], key=True))
    )
    with pytest.raises(EncodeError, match=r"public\.t\.more holds in \(1, 1\.5\)"):
        folded([(KEYED, OLD), (brought, other), (by_it, again)], tmp_path)


def test_a_number_that_became_a_text_keeps_its_digits(tmp_path: Path) -> None:
    text = Column(name="a", type_name="text", key=True, number=1, kind=KeyKind.TEXT, value=ValueType.parse("text"))
    newest = replace(KEYED, relation_id=4, columns=(text, *KEYED.columns[1:]))
    found = folded([(KEYED, OLD), (newest, [(2, 0, Row("U", values((2, 1.5), "z", None)))])], tmp_path)
    assert sorted(found) == [("1", 1.5, "x", None), ("2", 1.5, "z", None)]


def test_wider_columns_keep_their_values_and_others_are_asked_for(tmp_path: Path) -> None:
    wide = Column(name="a", type_name="bigint", key=True, number=1, value=ValueType.parse("integer 64"))
    newest = replace(KEYED, relation_id=4, columns=(wide, *KEYED.columns[1:]))
    new = [(2, 0, Row("U", ("2", "1.5", "z", None)))]
    assert sorted(folded([(KEYED, OLD), (newest, new)], tmp_path)) == [(1, 1.5, "x", None), (2, 1.5, "z", None)]
    other = Column(name="v", type_name="integer", number=3, value=ValueType.parse("integer 32"))
    newest = replace(KEYED, relation_id=4, columns=(*KEYED.columns[:2], other, KEYED.columns[3]))
    with pytest.raises(EncodeError, match=r"public\.t\.v holds"):
        folded([(KEYED, OLD), (newest, [(2, 0, Row("U", ("2", "1.5", "9", None)))])], tmp_path)


def retyped(relation_id: int, type_name: str, value: str) -> Relation:
    """The table with `v` of another type."""
    other = Column(name="v", type_name=type_name, number=3, value=ValueType.parse(value))
    return replace(KEYED, relation_id=relation_id, columns=(*KEYED.columns[:2], other, KEYED.columns[3]))


def test_a_text_is_asked_for_where_it_is_longer_than_a_later_type(tmp_path: Path) -> None:
    """The source has cut it, as a cast does with blanks, or otherwise."""
    short = retyped(4, "character varying(3)", "text")
    rows = [
        (0, 0, Row("I", values((1, 1.5), "abc", None))),
        (1, 0, Row("I", values((2, 1.5), "x", None))),
        (2, 0, Row("U", values((2, 1.5), "abc ", None))),
    ]
    again = [(3, 0, Row("U", values((2, 1.5), "abc", None)))]
    for files in ([(short, again)], [(short, again), (retyped(5, "text", "text"), [(4, 0, again[0][2])])]):
        found = folded([(KEYED, rows), *files], tmp_path)
        assert sorted(found) == [(1, 1.5, "abc", None), (2, 1.5, "abc", None)]
    other = [(3, 0, Row("I", values((3, 1.5), "y", None)))]
    for files in ([(short, other)], [(short, []), (retyped(5, "text", "text"), other)]):
        with pytest.raises(EncodeError, match=r"public\.t\.v holds in \(2, 1\.5\)"):
            folded([(KEYED, rows), *files], tmp_path)


def test_a_value_of_another_type_is_not_taken_from_the_row_before_it(tmp_path: Path) -> None:
    number, text = retyped(3, "integer", "integer 32"), retyped(4, "text", "text")
    files = [
        (number, [(0, 0, Row("I", values((1, 1.5), "5", None)))]),
        (text, [(1, 0, Row("U", values((1, 1.5), "7", None)))]),
    ]
    back = retyped(5, "integer", "integer 32")
    with pytest.raises(EncodeError, match=r"public\.t\.v holds in \(1, 1\.5\)"):
        folded([*files, (back, [(2, 0, Row("I", values((2, 1.5), "8", None)))])], tmp_path)
    with pytest.raises(EncodeError, match=r"public\.t\.v holds in \(1, 1\.5\)"):
        folded([*files, (back, [(2, 0, Row("U", values((1, 1.5), None, r"\x01"), "0010"))])], tmp_path)
    assert folded([*files, (back, [(2, 0, Row("U", values((1, 1.5), "8", None)))])], tmp_path) == [(1, 1.5, 8, None)]


def test_a_number_is_asked_for_whose_digits_a_type_in_between_did_not_have(tmp_path: Path) -> None:
    types = [
        retyped(number, f"numeric(6,{digits})", f"decimal 6 {digits}") for number, digits in ((3, 2), (4, 1), (5, 2))
    ]
    files = [(types[0], [(0, 0, Row("I", values((1, 1.5), "12.34", None)))]), (types[1], [])]
    with pytest.raises(EncodeError, match=r"public\.t\.v holds in \(1, 1\.5\)"):
        folded([*files, (types[2], [(2, 0, Row("I", values((2, 1.5), "8.00", None)))])], tmp_path)
