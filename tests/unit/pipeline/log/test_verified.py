"""A file is read again when it may not be what it was."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.log import open_reader, reader
from airflow_parallel_apply.pipeline.log.verified import VerifiedFiles
from tests.support.written_log import Change, append, make_log


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("content")
    return path


def test_a_mark_is_of_one_checksum_and_lapses(tmp_path: Path, file: Path) -> None:
    now = time.time()
    files = VerifiedFiles(tmp_path / "marks", clock=lambda: now)
    assert not files.knows(file, "sum")
    files.add(file, "sum")
    assert VerifiedFiles(tmp_path / "marks").knows(file, "sum")
    assert not files.knows(file, "another")
    now += 3700
    assert not files.knows(file, "sum")


def test_marks_that_have_lapsed_are_looked_for_now_and_then(tmp_path: Path, file: Path) -> None:
    now = time.time()
    files = VerifiedFiles(tmp_path / "marks", clock=lambda: now)
    directory = tmp_path / "marks" / "verified"
    files.add(file, "sum")
    (old,) = (mark for mark in directory.iterdir() if mark.name != "swept")
    os.utime(old, (now - 3700, now - 3700))
    files.add(file, "another")
    assert old.exists()
    now += 700
    files.add(file, "third")
    assert not old.exists()
    assert len(list(directory.iterdir())) == 3


def test_a_file_that_was_written_since_is_not_known(tmp_path: Path, file: Path) -> None:
    files = VerifiedFiles(tmp_path / "marks")
    files.add(file, "sum")
    before = file.stat()
    # File systems tell moments apart that are some milliseconds from each other.
    while file.stat().st_ctime_ns == before.st_ctime_ns:
        file.write_text("damaged")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not files.knows(file, "sum")


def test_marks_that_others_might_write_are_not_believed(tmp_path: Path, file: Path) -> None:
    files = VerifiedFiles(tmp_path / "marks")
    files.add(file, "sum")
    (tmp_path / "marks" / "verified").chmod(0o777)
    assert not files.knows(file, "sum")


def test_the_processes_of_a_host_hash_a_segment_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = str(tmp_path / "log")
    make_log(url)
    append(url, 0, [[Change("I", 1, "v")]])
    hashed = []
    monkeypatch.setattr(reader, "verify_segment", lambda directory, segment: hashed.append(segment.name))
    for _process in range(3):
        monkeypatch.setattr(reader, "_verified", set())
        monkeypatch.setattr(reader, "_on_this_host", VerifiedFiles(tmp_path / "marks"))
        found = open_reader(url)
        found.verify(found.state().segments)
    assert len(hashed) == 1
