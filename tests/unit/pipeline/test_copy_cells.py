"""Rows as a server's COPY writes them become the cells that they are: any text, NULL, no column at all."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.errors import SourceError
from airflow_parallel_apply.pipeline.model.copy_text import OF_A_SERVER, lists
from airflow_parallel_apply.pipeline.source.cells import NULL
from airflow_parallel_apply.pipeline.source.postgres.wire.copy_cells import copy_cells

VALUES = st.none() | st.text(st.sampled_from("\\\t\n\r\b\f\vNbfnrtv.é🙂 "), max_size=6)


def written(rows: list[list[str | None]]) -> bytes:
    """As COPY writes them."""

    def value(text: str | None) -> str:
        if text is None:
            return r"\N"
        for plain, escaped in OF_A_SERVER:
            text = text.replace(plain, escaped)
        return text

    return "".join("\t".join(map(value, row)) + "\n" for row in rows).encode()


@given(st.integers(1, 3).flatmap(lambda width: st.lists(st.lists(VALUES, min_size=width, max_size=width), max_size=5)))
def test_cells_are_the_values_that_were_written(rows: list[list[str | None]]) -> None:
    width = len(rows[0]) if rows else 1
    cells = copy_cells(written(rows), len(rows), width)
    numbers = np.arange(len(rows) * width, dtype=np.int64)
    flat = [value for row in rows for value in row]
    assert cells.take(numbers).to_pylist() == flat
    assert (cells.status(numbers) == NULL).tolist() == [value is None for value in flat]
    lines = written(rows).decode().split("\n")[:-1]
    assert lists(pa.array(lines, pa.string())).to_pylist() == rows


def test_rows_without_columns_have_no_cells() -> None:
    assert len(copy_cells(b"\n\n", 2, 0).take(np.zeros(0, dtype=np.int64))) == 0


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(SourceError, match="another width"):
        copy_cells(b"1\t2\n3\n", 2, 2)
