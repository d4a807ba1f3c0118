"""An export to files refuses another log, a damaged place, and a place that takes no file as a whole."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.encode.files.dataset import Dataset
from airflow_parallel_apply.pipeline.encode.files.place import FilePlace
from airflow_parallel_apply.pipeline.encode.formats import Format
from airflow_parallel_apply.pipeline.encode.progress import Encoded
from airflow_parallel_apply.pipeline.errors import ConfigurationError, EncodeError, LogError, Unavailable
from airflow_parallel_apply.pipeline.export import ExportOptions
from airflow_parallel_apply.pipeline.log.writing import open_writer
from tests.support.exported_files import CHANGES, TRANSACTIONS, changes, data_files, export
from tests.support.written_log import Change, append, make_log


def test_a_place_keeps_one_log_and_one_format(log_url: str, place: str, tmp_path: Path) -> None:
    export(log_url, place, until_seqno=1)
    with pytest.raises(EncodeError, match="format is parquet"):
        export(log_url, place, format=Format.CSV)


def test_a_log_that_was_set_back_is_noticed(log_url: str, place: str, tmp_path: Path) -> None:
    export(log_url, place)
    former = str(tmp_path / "former")
    make_log(former)
    append(former, 0, TRANSACTIONS[:3])
    with pytest.raises(Unavailable, match=r"ends at seqno 2, and .* up to seqno 4: .*another place"):
        export(former, place)
    assert changes(place) == CHANGES


def test_a_log_that_was_set_back_and_has_grown_again_is_noticed(log_url: str, place: str, tmp_path: Path) -> None:
    export(log_url, place)
    again = str(tmp_path / "again")
    make_log(again)
    append(again, 0, [*TRANSACTIONS, [Change("I", 5, "e")]], times=[datetime(2027, 1, 1, tzinfo=UTC)] * 6)
    with pytest.raises(EncodeError, match=r"another transaction of seqno 4 than the one that .*another place"):
        export(again, place)
    append(log_url, 5, [[Change("I", 5, "e")]])
    export(log_url, place)
    assert changes(place) == [*CHANGES, (5, 0, "insert", 5, "e")]


def test_what_was_purged_is_told_with_what_leads_on(log_url: str, place: str) -> None:
    export(log_url, place, until_seqno=1)
    assert open_writer(log_url).purge(4)
    with pytest.raises(LogError, match=r"seqnos 2 to 4 were purged from the log, and .* a query, .* a new log"):
        export(log_url, place)
    assert str(export(log_url, place, until_seqno=1)).startswith("nothing to export"), "a task that was cleared"


def test_a_file_that_was_swept_before_its_commit_is_noticed(log_url: str, place: str) -> None:
    def sweep(encoded: Encoded) -> None:
        for path in data_files(place):
            path.unlink()

    with pytest.raises(EncodeError, match="not there any more"):
        export(log_url, place, threads=1, report=sweep)
    assert Dataset(FilePlace(place)).newest() is None


def test_a_manifest_that_is_gone_or_damaged_is_named(log_url: str, place: str) -> None:
    export(log_url, place, until_seqno=1)
    (first,) = (Path(place) / "_manifests").iterdir()
    export(log_url, place)
    content = first.read_bytes()
    first.unlink()
    with pytest.raises(EncodeError, match=r"manifests 0 to 0 of .* are gone"):
        export(log_url, place)
    first.write_bytes(content)
    last = first.with_name(first.name.replace("0.json", "1.json"))
    last.write_bytes(last.read_bytes().replace(b'"rows":', b'"rowz":'))
    with pytest.raises(EncodeError, match=r"00000000000000000001\.json is no manifest"):
        export(log_url, place)


@pytest.mark.parametrize("url", ["ftp://host/dir", "http://host/dir"])
def test_a_place_where_files_cannot_appear_together_is_refused(log_url: str, url: str) -> None:
    with pytest.raises(ConfigurationError, match="appear once"):
        export(log_url, url)


def test_threads_below_one_are_refused() -> None:
    for threads in (0, -1):
        with pytest.raises(ConfigurationError, match="threads"):
            ExportOptions(threads=threads)
