"""CSV: what no line of it can say is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_parallel_apply.pipeline.encode.csv.encoder import CsvEncoder
from airflow_parallel_apply.pipeline.errors import EncodeError


def test_a_null_in_the_only_column_is_refused_since_readers_pass_over_empty_lines() -> None:
    rows = pa.record_batch({"id": pa.array([1, None])})
    encoder = CsvEncoder(rows.schema)
    with pytest.raises(EncodeError, match="would be an empty line"):
        list(encoder.body([rows]))
    assert b"".join(encoder.body([rows.slice(0, 1)])) == b"1\n"
