"""Older rows under a newer definition: another key, more columns, other types; what nothing tells is asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_parallel_apply.pipeline.errors import EncodeError
from airflow_parallel_apply.pipeline.model.change import Column, Relation
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.model.value_type import ValueType
from tests.unit.pipeline.compact.folding import KEYED, Row, folded, values


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
