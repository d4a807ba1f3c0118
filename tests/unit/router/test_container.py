"""Spilled batches: read back as they were, within a budget, and gone without a trace."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_parallel_apply.pipeline.errors import SpillFull
from airflow_parallel_apply.router.engine.budget import SharedBytes
from airflow_parallel_apply.router.engine.container import Container, Place
from tests.support.routed import batch, nothing_left

AMPLE = 2**30


def kept(container: Container, one: pa.RecordBatch) -> Place:
    place = container.write(one)
    assert place is not None
    return place


def test_batches_are_read_from_any_place_as_often_as_wanted(tmp_path: Path) -> None:
    container = Container(tmp_path, SharedBytes(AMPLE), file_bytes=500)
    written = [batch([0] * count, first=count) for count in range(1, 60)]
    places = [kept(container, one) for one in written]
    for _ in range(2):
        for place, one in reversed(list(zip(places, written, strict=True))):
            assert container.read(place) == one
    container.close()


def test_slices_dictionaries_and_other_schemas_are_kept(tmp_path: Path) -> None:
    container = Container(tmp_path, SharedBytes(AMPLE))
    encoded = pa.record_batch({"a": pa.array(["x", None, "y", "x"]).dictionary_encode()})
    for one in (encoded, encoded.slice(1, 2), batch([0] * 100).slice(40, 7), batch([])):
        place = kept(container, one)
        assert container.read(place) == one
    container.close()


def test_a_file_goes_with_the_last_of_its_batches(tmp_path: Path) -> None:
    disk = SharedBytes(AMPLE)
    with nothing_left(tmp_path):
        container = Container(tmp_path, disk, file_bytes=1)
        places = [kept(container, batch([0] * 10)) for _ in range(3)]
        assert disk.used_bytes == container.disk_bytes == 3 * places[0].size_bytes
        container.free(places[1])
        assert disk.used_bytes == 2 * places[0].size_bytes
        container.free(places[0])
        container.free(places[2])
        assert disk.used_bytes == container.disk_bytes == 0
        assert container.high_disk_bytes == 3 * places[0].size_bytes


def test_closing_lets_go_of_everything_and_reads_find_nothing(tmp_path: Path) -> None:
    disk = SharedBytes(AMPLE)
    with nothing_left(tmp_path):
        container = Container(tmp_path, disk)
        place = kept(container, batch([0]))
        container.close()
        assert container.read(place) is None
        container.free(place)
        assert disk.used_bytes == 0
        assert container.write(batch([0])) is None


def test_spill_files_have_no_name(tmp_path: Path) -> None:
    container = Container(tmp_path, SharedBytes(AMPLE))
    container.write(batch([0]))
    assert list(tmp_path.iterdir()) == []
    container.close()


def test_a_spent_budget_is_told_with_what_to_do(tmp_path: Path) -> None:
    container = Container(tmp_path, SharedBytes(5000))
    one = batch(list(range(100)))
    while container.disk_bytes + one.nbytes <= 5000:
        container.write(one)
    with pytest.raises(SpillFull, match=r"disk budget of 0 MB is spent.* Hint: Give the router more disk"):
        container.write(batch(list(range(1000))))
    assert container.disk_bytes <= 5000
    container.close()


def test_a_full_disk_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    disk = SharedBytes(AMPLE)
    container = Container(tmp_path, disk)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(SpillFull, match=r"cannot spill to .*No space left.*Free disk there"):
        container.write(batch([0]))
    container.close()
    assert disk.used_bytes == 0
