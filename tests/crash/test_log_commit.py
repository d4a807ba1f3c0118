"""A writer that dies at any step of a commit, two writers at once, and files that were damaged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log import WriterOptions, directory, open_reader, publication, unpublished
from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.log.writer import DirectoryLogWriter
from airflow_parallel_apply.pipeline.log.writing import create_log, open_writer
from tests.log_batches import IDENTITY, files_of, history

END = 2**62


class Crash(BaseException):
    """Nothing of the writer runs after it, as after kill -9."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = str(tmp_path / "log")
    create_log(url, IDENTITY)
    first = open_writer(url)
    first.append(*history(0, 10))
    first.commit(10)
    return url


def seqnos(url: str) -> list[int]:
    rows = open_reader(url).rows(-1, END, columns=["seqno"], in_order=True)
    return sorted(set(pa.Table.from_batches(rows, schema=pa.schema([ROWS.field("seqno")])).column(0).to_pylist()))


STEPS = {
    "before the rows are written": (unpublished, "write_segment"),
    "before the names are synced": (publication, "sync_directory"),
    "before the manifest": (publication, "publish"),
    "with the manifest's temporary file written": (os, "link"),
    "with the manifest linked": (directory, "sync_directory"),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_in_a_commit_leaves_all_of_it_or_nothing(url: str, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def crash(*_: object, **__: object) -> Iterator[None]:
        raise Crash

    dying = open_writer(url)
    dying.append(*history(10, 10))
    with monkeypatch.context() as patch:
        patch.setattr(*STEPS[step], crash)
        with pytest.raises(Crash):
            dying.commit(20)

    survived = step == "with the manifest linked"
    next_seqno = 20 if survived else 10
    assert open_reader(url).state().captured_offset == next_seqno
    assert seqnos(url) == list(range(next_seqno))
    successor = open_writer(url)
    assert successor.state().last_seqno == next_seqno - 1
    successor.append(*history(next_seqno, 30 - next_seqno))
    successor.commit(30)
    assert seqnos(url) == list(range(30))
    open_writer(url)
    assert files_of(url) == {
        f"{segment.name}.{kind}.parquet"
        for segment in open_reader(url).state().segments
        for kind in ("rows", "transactions")
    }


def test_a_writer_that_was_overtaken_publishes_nothing_and_removes_its_files(url: str) -> None:
    stale, faster = open_writer(url), open_writer(url)
    stale.append(*history(10, 5))
    faster.append(*history(10, 7))
    faster.commit(17)
    before = files_of(url)
    with pytest.raises(LogError, match=r"another writer published version 2.*its source stays"):
        stale.commit(15)
    assert files_of(url) == before
    assert seqnos(url) == list(range(17))
    for call in (lambda: stale.append(*history(10, 5)), lambda: stale.commit(18)):
        with pytest.raises(LogError, match="Open a new writer"):
            call()


def test_an_overtaken_writer_is_refused_even_without_news(url: str) -> None:
    stale, faster = open_writer(url), open_writer(url)
    faster.commit(17)
    with pytest.raises(LogError, match="another writer"):
        stale.commit(10)


def test_a_writer_with_an_unknown_outcome_neither_goes_on_nor_removes_files(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise LogError(f"{path}: Input/output error")

    uncertain = open_writer(url)
    uncertain.append(*history(10, 5))
    with monkeypatch.context() as patch:
        patch.setattr(directory, "sync_directory", fail)
        with pytest.raises(LogError, match="Input/output error"):
            uncertain.commit(15)
    with pytest.raises(LogError, match="unknown"):
        uncertain.commit(15)
    uncertain.abandon()
    assert seqnos(url) == list(range(15))


def test_a_writer_that_is_interrupted_behind_its_manifest_leaves_the_files_that_it_names(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(writer: DirectoryLogWriter) -> None:
        raise Crash

    interrupted = open_writer(url)
    interrupted.append(*history(10, 5))
    with monkeypatch.context() as patch:
        patch.setattr(DirectoryLogWriter, "_forget", interrupt)
        with pytest.raises(Crash):
            interrupted.commit(15)
    interrupted.abandon()
    assert seqnos(url) == list(range(15))


def test_a_segment_that_could_not_be_written_never_becomes_a_gap(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise LogError("no space left on device")

    unlucky = open_writer(url)
    unlucky.append(*history(10, 5))
    with monkeypatch.context() as patch:
        patch.setattr(unpublished, "write_segment", full)
        with pytest.raises(LogError, match="no space"):
            unlucky.commit(15)
    with pytest.raises(LogError, match="Abandon"):
        unlucky.commit(15)
    unlucky.abandon()
    unlucky.append(*history(10, 5))
    unlucky.commit(15)
    assert seqnos(url) == list(range(15))


def test_a_writer_that_slept_publishes_what_it_wrote_or_nothing(url: str) -> None:
    options = WriterOptions(segment_file_bytes=1, small_file_bytes=1)
    slept, overtaken = open_writer(url, options=options), open_writer(url, options=options)
    slept.append(*history(10, 5))
    overtaken.append(*history(10, 5))
    spilled = files_of(url)
    now = datetime.now(UTC)
    open_writer(url, clock=lambda: now + timedelta(days=2))
    assert files_of(url) == spilled
    slept.commit(15)
    assert seqnos(url) == list(range(15))
    open_writer(url)
    assert len(files_of(url)) < len(spilled)
    with pytest.raises(LogError, match=r"published version|is missing"):
        overtaken.commit(15)
    assert seqnos(url) == list(range(15))


def test_a_damaged_segment_is_refused_by_name_and_never_merged(url: str) -> None:
    (segment,) = open_reader(url).state().segments
    path = Path(url) / "segments" / f"{segment.name}.rows.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(LogError, match=rf"{segment.name}\.rows\.parquet does not match its checksum"):
        open_reader(url).verify([segment])
    with pytest.raises(LogError, match="checksum"):
        list(open_reader(url).rows(-1, END))
    merging = open_writer(url, options=WriterOptions(merged_file_bytes=segment.file_bytes + 1))
    merging.append(*history(10, 1))
    with pytest.raises(LogError, match="checksum"):
        merging.commit(11)


def test_a_short_or_missing_segment_is_refused_by_name(url: str) -> None:
    (segment,) = open_reader(url).state().segments
    path = Path(url) / "segments" / f"{segment.name}.rows.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LogError, match=rf"{segment.name}\.rows\.parquet has"):
        open_reader(url).row_files(-1, END)
    path.unlink()
    for call in (lambda reader: reader.row_files(-1, END), lambda reader: reader.verify([segment])):
        with pytest.raises(LogError, match=rf"{segment.name}\.rows\.parquet is missing"):
            call(open_reader(url))
    (Path(url) / "segments" / f"{segment.name}.transactions.parquet").write_bytes(b"")
    with pytest.raises(LogError, match=r"transactions\.parquet does not match"):
        open_reader(url).transactions(-1, END)


def test_a_damaged_or_missing_manifest_is_refused_by_name(url: str) -> None:
    path = Path(url) / "manifests" / f"{1:020d}.json"
    content = path.read_bytes()
    for damaged in (content.replace(b'"captured_offset":10', b'"captured_offset":11'), content[:-5], b""):
        path.write_bytes(damaged)
        with pytest.raises(LogError, match=r"1\.json does not match its checksum"):
            open_reader(url)
    path.write_bytes(content)
    writer = open_writer(url)
    writer.commit(11)
    path.unlink()
    with pytest.raises(LogError, match=r"1\.json is missing"):
        open_reader(url)


def test_an_emptied_log_is_not_taken_for_a_new_one(url: str) -> None:
    for path in (Path(url) / "manifests").iterdir():
        path.unlink()
    with pytest.raises(LogError, match="holds no manifest"):
        open_reader(url)


def test_temporary_files_are_ignored_and_removed_when_they_are_old(url: str) -> None:
    leftover = Path(url) / "manifests" / ".tmp-0123"
    leftover.write_bytes(b"half a manif")
    assert open_reader(url).state().last_seqno == 9
    open_writer(url)
    assert leftover.exists()
    long_ago = (datetime.now(UTC) - timedelta(hours=2)).timestamp()
    os.utime(leftover, (long_ago, long_ago))
    open_writer(url)
    assert not leftover.exists()
