"""An export commits a range of a log once: what is killed, late or repeated adds nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.encode.files import dataset as dataset_module
from airflow_parallel_apply.pipeline.encode.files.dataset import Dataset
from airflow_parallel_apply.pipeline.encode.files.place import FilePlace
from airflow_parallel_apply.pipeline.encode.formats import Format
from airflow_parallel_apply.pipeline.encode.progress import Encoded
from airflow_parallel_apply.pipeline.errors import ConfigurationError, EncodeError, LogError, Unavailable
from airflow_parallel_apply.pipeline.export import ExportOptions, ExportReport, export_changes
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.writing import open_writer
from tests.support import written_log
from tests.support.written_log import Change, append, make_log

TRANSACTIONS = [
    [Change("I", 1, "a"), Change("I", 2, "b")],
    [Change("U", 1, "a2"), Change("I", 3, None)],
    [Change("D", 2)],
    [Change("T")],
    [Change("I", 4, "d")],
]
CHANGES = [
    (0, 0, "insert", 1, "a"), (0, 1, "insert", 2, "b"), (1, 0, "update", 1, "a2"), (1, 1, "insert", 3, None),
    (2, 0, "delete", 2, None), (3, 0, "truncate", None, None), (4, 0, "insert", 4, "d"),
]  # fmt: skip


@pytest.fixture
def log_url(tmp_path: Path) -> str:
    url = str(tmp_path / "log")
    make_log(url)
    append(url, 0, TRANSACTIONS)
    return url


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "out")


def export(log_url: str, place: str, **more: Any) -> ExportReport:
    call = {name: more.pop(name) for name in ("report", "cancelled") if name in more}
    return export_changes(open_reader(log_url), place, ExportOptions(**more), **call)


def changes(place: str) -> list[tuple[Any, ...]]:
    """The changes that the manifests name, by seqno and fragno."""
    dataset = Dataset(FilePlace(place))
    found = []
    for manifest in dataset.manifests():
        for file in manifest.files:
            rows = pq.read_table(Path(place) / file.path).to_pylist()
            assert len(rows) == file.rows
            assert (Path(place) / file.path).stat().st_size == file.bytes_
            places = [(row["_seqno"], row["_fragno"]) for row in rows]
            assert places == sorted(places), "a file's rows are in order"
            assert (places[0][0], places[-1][0]) == (file.first_seqno, file.last_seqno)
            found += [(row["_seqno"], row["_fragno"], row["_operation"], row["id"], row["v"]) for row in rows]
    return sorted(found, key=lambda row: row[:2])


def data_files(place: str) -> list[Path]:
    return sorted(path for path in Path(place).rglob("*") if path.is_file() and path.parent.name != "_manifests")


@pytest.mark.parametrize("threads", [1, 2, 4, 16])
def test_every_change_is_there_once_whatever_the_number_of_threads(log_url: str, place: str, threads: int) -> None:
    report = export(log_url, place, threads=threads)
    assert (report.first_seqno, report.last_seqno, report.version, report.rows) == (0, 4, 0, 7)
    assert changes(place) == CHANGES
    assert len(report.files) == len(data_files(place))


def test_a_small_window_makes_more_files_of_the_same_changes(log_url: str, place: str) -> None:
    append(log_url, 5, [[Change("I", 10, "x")]])
    export(log_url, place, window_bytes=1)
    assert changes(place) == [*CHANGES, (5, 0, "insert", 10, "x")]


def test_an_export_goes_on_where_the_last_one_ended_and_again_changes_nothing(log_url: str, place: str) -> None:
    assert export(log_url, place, until_seqno=1).last_seqno == 1
    assert changes(place) == CHANGES[:4]
    again = export(log_url, place, until_seqno=1)
    assert (again.rows, again.files, again.last_seqno, again.version) == (0, (), 1, 0)
    assert str(again) == "nothing to export: the place comes up to seqno 1"
    assert export(log_url, place).first_seqno == 2
    assert changes(place) == CHANGES
    before = data_files(place)
    assert export(log_url, place).files == ()
    assert data_files(place) == before


@pytest.mark.parametrize("moment", range(1, 6))
def test_an_export_that_is_killed_has_committed_nothing_and_the_next_one_is_exact(
    log_url: str, place: str, moment: int
) -> None:
    told = 0

    def die(encoded: Encoded) -> None:
        nonlocal told
        told += 1
        if told == moment:
            os._exit(9)

    pid = os.fork()
    if not pid:
        export(log_url, place, report=die)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert Dataset(FilePlace(place)).manifests() == []
    report = export(log_url, place)
    assert changes(place) == CHANGES
    dataset = Dataset(FilePlace(place))
    assert dataset.sweep() == (), "what may still be written is left alone"
    dataset.sweep(grace=timedelta(0))
    assert len(data_files(place)) == len(report.files)
    assert changes(place) == CHANGES


@pytest.mark.parametrize(("is_committed", "rows"), [(False, 7), (True, 0)], ids=["before", "after"])
def test_a_kill_around_the_manifest_commits_all_or_nothing(
    log_url: str, place: str, is_committed: bool, rows: int
) -> None:
    published: Callable[..., bool] = FilePlace.publish

    def die(self: FilePlace, path: str, content: bytes) -> bool:
        if is_committed:
            published(self, path, content)
        os._exit(9)

    pid = os.fork()
    if not pid:
        FilePlace.publish = die  # type: ignore[method-assign]
        export(log_url, place)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert export(log_url, place).rows == rows
    assert changes(place) == CHANGES
    Dataset(FilePlace(place)).sweep(grace=timedelta(0))
    assert changes(place) == CHANGES
    assert len(data_files(place)) == sum(len(one.files) for one in Dataset(FilePlace(place)).manifests())


@pytest.mark.parametrize("raises_in", ["publish", "merge"])
def test_an_export_that_fails_behind_its_manifest_has_committed_all(
    log_url: str, place: str, monkeypatch: pytest.MonkeyPatch, raises_in: str
) -> None:
    """An answer is lost, or a task is timed out."""
    for until in range(4):
        export(log_url, place, until_seqno=until)
    owner: Any = FilePlace if raises_in == "publish" else Dataset
    done = getattr(owner, raises_in)

    def fail(*given: Any) -> None:
        done(*given)
        raise Unavailable("the answer is lost")

    monkeypatch.setattr(owner, raises_in, fail)
    monkeypatch.setattr(dataset_module, "FAN_OUT", 5)
    with pytest.raises(Unavailable, match="the answer is lost"):
        export(log_url, place)
    monkeypatch.undo()
    assert export(log_url, place).rows == 0
    assert changes(place) == CHANGES


def test_a_late_export_finds_another_one_in_its_place_and_adds_nothing(log_url: str, place: str) -> None:
    """The log grows, and the other one commits, while the first has written, and has not committed."""
    reports = []

    def overtake(encoded: Encoded) -> None:
        if not reports:
            reports.append(None)
            append(log_url, 5, [[Change("I", 5, "e")]])
            reports.append(export(log_url, place))

    late = export(log_url, place, threads=1, report=overtake)
    assert reports[1] is not None
    assert reports[1].rows == 8
    assert (late.rows, late.version) == (0, 0)
    assert changes(place) == [*CHANGES, (5, 0, "insert", 5, "e")]
    assert len(data_files(place)) == len(reports[1].files), "the late one has removed what it had written"


def test_exports_side_by_side_commit_each_change_once(log_url: str, place: str) -> None:
    together = threading.Barrier(4)

    def one(until: int) -> None:
        together.wait(120)
        export(log_url, place, until_seqno=until)

    threads = [threading.Thread(target=one, args=[until]) for until in (1, 2, 4, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert changes(place) == CHANGES


def test_a_place_that_refuses_for_a_moment_is_tried_again_and_progress_is_right(
    log_url: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Encoded] = []
    fail_first(monkeypatch, 2)
    report = export(log_url, place, report=told.append, threads=1)
    assert report.rows == 7
    assert changes(place) == CHANGES
    assert told[-1].rows == 7
    assert told[-1].fraction == 1.0
    assert len(data_files(place)) == len(report.files)


def test_a_place_that_goes_on_refusing_ends_the_export_without_a_trace(
    log_url: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_first(monkeypatch, 100)
    with pytest.raises(Unavailable, match="no space"):
        export(log_url, place)
    assert data_files(place) == []
    assert Dataset(FilePlace(place)).newest() is None


def fail_first(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """The place takes the first piece, and then has no space."""
    written: Callable[..., int] = FilePlace.write
    left = [times]

    def write(self: FilePlace, path: str, pieces: Any) -> int:
        if left[0]:
            left[0] -= 1
            written(self, path, [next(iter(pieces)), *pieces])
            raise Unavailable("no space for a moment")
        return written(self, path, pieces)

    monkeypatch.setattr(FilePlace, "write", write)


def test_a_cancelled_export_leaves_nothing(log_url: str, place: str) -> None:
    with pytest.raises(Unavailable, match="cancelled"):
        export(log_url, place, cancelled=lambda: True)
    assert data_files(place) == []
    assert Dataset(FilePlace(place)).newest() is None


def test_a_column_with_a_value_that_does_not_fit_becomes_text_for_good_and_is_named(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_parallel_apply.pipeline.model.value_type import ValueKind, ValueType

    key, value = written_log.T.columns
    dated = replace(written_log.T, columns=(key, replace(value, value=ValueType(kind=ValueKind.DATE))))
    monkeypatch.setattr(written_log, "T", dated)
    url = str(tmp_path / "dated")
    make_log(url)
    append(url, 0, [[Change("I", 1, "2026-01-31"), Change("I", 2, "infinity")]])
    report = export(url, place)
    assert report.texts == ("public.t.v",)
    assert [row[-1] for row in changes(place)] == ["2026-01-31", "infinity"]
    append(url, 1, [[Change("I", 3, "2026-02-28")]])
    assert export(url, place).texts == ("public.t.v",)
    assert changes(place)[-1][-1] == "2026-02-28"
    # Where every value fits it is a date.
    assert export(url, f"{place}-2", until_seqno=-1).files == ()


def test_only_the_tables_that_are_wanted_are_exported(log_url: str, place: str) -> None:
    told: list[Encoded] = []
    report = export(log_url, place, tables=TablePatterns(include=("other.*",)), report=told.append)
    assert (report.rows, report.files, report.last_seqno) == (0, (), 4)
    assert told[-1].rows == 7
    assert export(log_url, place).files == (), "the position is that of the place"


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


@pytest.mark.parametrize("format_", Format)
def test_every_format_writes_files_of_its_kind(log_url: str, place: str, format_: Format) -> None:
    report = export(log_url, place, format=format_, threads=1)
    assert report.rows == 7
    assert {Path(file).suffix for file in report.files} == {
        {"json": ".jsonl", "debezium": ".jsonl"}.get(format_, f".{format_}")
    }


def test_another_file_system_takes_files_as_well(log_url: str) -> None:
    url = "memory://exported-by-a-test"
    assert export(log_url, url, until_seqno=2).rows == 5
    assert export(log_url, url).rows == 2
    place = FilePlace(url)
    assert [manifest.version for manifest in Dataset(place).manifests()] == [0, 1]
    assert not place.publish("_manifests/00000000000000000001.json", b"")
    assert all(file.startswith("memory://") for file in export(log_url, f"{url}-2").files)


@pytest.mark.parametrize("url", ["ftp://host/dir", "http://host/dir"])
def test_a_place_where_files_cannot_appear_together_is_refused(log_url: str, url: str) -> None:
    with pytest.raises(ConfigurationError, match="appear once"):
        export(log_url, url)


def test_threads_below_one_are_refused() -> None:
    for threads in (0, -1):
        with pytest.raises(ConfigurationError, match="threads"):
            ExportOptions(threads=threads)
