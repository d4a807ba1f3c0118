"""Lines are PostgreSQL's COPY text, whole and back again, for one row and for columns of them."""

from __future__ import annotations

import numpy as np
import psycopg
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from psycopg import sql

from airflow_parallel_apply.pipeline.model.copy_text import line, line_widths, lines, lists, values_of

# No text of PostgreSQL has a zero byte.
_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0") | st.sampled_from("\\\t\n\rNtnr"))
_ROWS = st.lists(st.lists(st.none() | _TEXTS, min_size=1, max_size=4), max_size=6)


def _columns(rows: list[list[str | None]]) -> tuple[pa.StringArray, pa.Array]:
    values = pa.array([value for row in rows for value in row], pa.string())
    return values, pa.array(np.cumsum([0, *map(len, rows)]), pa.int32())


@given(_ROWS)
def test_a_line_is_read_back_as_it_was_written(rows: list[list[str | None]]) -> None:
    assert [values_of(line(row)) for row in rows] == rows


@given(_ROWS)
def test_many_lines_are_each_as_one_alone(rows: list[list[str | None]]) -> None:
    made = lines(*_columns(rows))
    assert made.to_pylist() == [line(row) for row in rows]
    assert line_widths(made).to_pylist() == [len(row) for row in rows]


@given(_ROWS)
def test_lines_become_lists_also_of_a_part_of_an_array(rows: list[list[str | None]]) -> None:
    expected = [None, *rows, None, ["behind"]]
    made = pa.array([None if row is None else line(row) for row in expected], pa.string())
    assert lists(made).to_pylist() == expected
    assert lists(made.slice(1, len(rows) + 1)).to_pylist() == expected[1:-1]


def test_an_escaped_null_is_a_text() -> None:
    assert line(["\\N", None]) == "\\\\N\t\\N"
    assert lists(pa.array([line(["\\N", None])])).to_pylist() == [["\\N", None]]


def test_rows_without_columns_are_empty_lines() -> None:
    assert lines(pa.array([], pa.string()), pa.array([0, 0, 0], pa.int32())).to_pylist() == ["", ""]


def test_copy_takes_lines_as_they_are(target_dsn: str) -> None:
    rows: list[list[str | None]] = [
        ["plain", None, ""],
        ["a\tb\nc\rd", "back\\slash", "\\N"],
        ["\\", "\\\\t", "\b\f\v ä"],
        ["\\.", " ", "\\x41"],
    ]
    with psycopg.connect(target_dsn) as connection:
        connection.execute("CREATE TEMPORARY TABLE t (n serial, a text, b text, c text)")
        with connection.cursor().copy(sql.SQL("COPY t (a, b, c) FROM STDIN")) as copy:
            copy.write("".join(line(row) + "\n" for row in rows))
        found = connection.execute("SELECT a, b, c FROM t ORDER BY n").fetchall()
    assert [list(row) for row in found] == rows
