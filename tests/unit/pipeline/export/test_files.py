"""An export commits a range of a log once: what is killed, late or repeated adds nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.encode.files import dataset as dataset_module
from airflow_parallel_apply.pipeline.encode.files.dataset import Dataset
from airflow_parallel_apply.pipeline.encode.files.place import FilePlace
from airflow_parallel_apply.pipeline.encode.formats import Format
from airflow_parallel_apply.pipeline.encode.progress import Encoded
from airflow_parallel_apply.pipeline.errors import Unavailable
from tests.support import written_log
from tests.support.exported_files import CHANGES, changes, data_files, export
from tests.support.written_log import Change, append, make_log


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
