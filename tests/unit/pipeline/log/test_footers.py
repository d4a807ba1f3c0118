"""A row file's footer tells how wide its rows are, where it was written by a version that says so."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log import open_reader
from airflow_parallel_apply.pipeline.log.footers import widest_values
from airflow_parallel_apply.pipeline.log.schema import ROWS
from tests.support.written_log import Change, append, make_log


def test_the_widest_row_of_all_files_counts(tmp_path: Path) -> None:
    url = str(tmp_path / "log")
    make_log(url)
    append(url, 0, [[Change("I", 1, "narrow")], [Change("I", 2, "w" * 2000)]])
    append(url, 2, [[Change("I", 3, "narrow")]])
    files = open_reader(url).row_files(-1, 2)
    assert len(files) == 2
    assert widest_values(files) == len("2") + 1 + 2000
    assert widest_values(files[1:]) == len("3") + 1 + len("narrow")
    assert widest_values(()) == 0


@pytest.mark.parametrize("with_width", [False, True], ids=["no column", "no statistics"])
def test_what_an_older_version_wrote_is_not_known(tmp_path: Path, with_width: bool) -> None:
    url = str(tmp_path / "log")
    make_log(url)
    append(url, 0, [[Change("I", 1, "narrow")]])
    (path,) = open_reader(url).row_files(-1, 0)
    rows = pq.read_table(path)
    older = str(tmp_path / "older.parquet")
    pq.write_table(rows if with_width else rows.select(ROWS.names), older, write_statistics=["seqno"])
    assert widest_values([path, older]) is None


def test_a_file_that_is_damaged_is_not_known_and_one_that_is_missing_is_told(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(b"PAR1 and no more")
    assert widest_values([str(damaged)]) is None
    with pytest.raises(LogError, match="is missing"):
        widest_values([str(tmp_path / "missing.parquet")])
