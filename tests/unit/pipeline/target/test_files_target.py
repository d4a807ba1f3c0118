"""A directory of files as a target: its address, whose it is, and what a run removes."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.encode.files.dataset import Dataset
from airflow_parallel_apply.pipeline.encode.files.place import FilePlace
from airflow_parallel_apply.pipeline.errors import ConfigurationError, EncodeError, OwnershipLost, TargetError
from airflow_parallel_apply.pipeline.export import ExportOptions, export_changes
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.epoch import Branch, Unit
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.expectation import Expectation
from airflow_parallel_apply.pipeline.target.files.address import FilesAddress
from airflow_parallel_apply.pipeline.target.files.head import Head
from airflow_parallel_apply.pipeline.target.files.target import FilesTarget
from airflow_parallel_apply.pipeline.target.relations import LogRelations
from tests.support.written_log import Change, append, make_log


def opened(lake: Path, pipeline: str = "demo", *, now: datetime | None = None) -> FilesTarget:
    return FilesTarget(
        FilesAddress.parse(f"files+file://{lake}"),
        pipeline,
        relations=LogRelations(None, pipeline),
        ledger=lambda: "ledger",
        clock=lambda: now or datetime.now(UTC),
    )


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("files:///mnt/lake", "not the address of a directory"),
        ("files+s3://", "not the address of a directory"),
        ("files+file:///lake?format=orc", "format 'orc'"),
        ("files+file:///lake?format=debezium", "format 'debezium'"),
        ("files+file:///lake?codec=zstd", "no option codec"),
        ("files+file:///lake#2", "has a #"),
    ],
)
def test_an_address_that_says_too_little_or_too_much_is_refused(address: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        FilesAddress.parse(address)


def test_secrets_and_options_of_an_address_are_the_file_system_s() -> None:
    found = FilesAddress.parse(
        "files+s3://KEY:a%2Fb@lake/shop?endpoint_url=http://127.0.0.1:1&text=public.t.at,public.t.b"
    )
    assert (found.url, found.format) == ("s3://lake/shop", "parquet")
    assert found.options == {"key": "KEY", "secret": "a/b", "endpoint_url": "http://127.0.0.1:1"}
    assert sorted(found.texts_of("public.t")) == ["at", "b"]
    assert "a/b" not in repr(found)
    endpoint = Endpoint(conn_id="lake", url="files+s3://KEY:hush@lake/shop?format=avro")
    assert (endpoint.scheme, endpoint.place) == ("files", "lake/shop")


def test_a_directory_is_one_pipeline_s(tmp_path: Path) -> None:
    opened(tmp_path).lay_out(log_id="log", routing=Routing(channels=2), generation=1)
    with pytest.raises(ConfigurationError, match="directory of pipeline demo"):
        opened(tmp_path, "another").positions()
    (found,) = opened(tmp_path, "another").findings(Expectation(channels=2))
    assert "directory of pipeline demo" in found.what


def test_no_export_goes_into_a_pipeline_s_directory(tmp_path: Path) -> None:
    log = tmp_path / "log"
    make_log(str(log))
    append(str(log), 0, [[Change("I", 1, "a")]])
    opened(tmp_path / "lake").lay_out(log_id="log", routing=Routing(channels=1), generation=1)
    with pytest.raises(EncodeError, match="directory of a pipeline"):
        export_changes(open_reader(str(log)), str(tmp_path / "lake"), ExportOptions())


def test_who_races_for_the_next_manifest_reads_again_and_loses_nothing(tmp_path: Path) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    first.lay_out(log_id="log", routing=Routing(channels=2), generation=1)
    second.positions()
    first.take(0, generation=1, token="a")
    second.take(1, generation=1, token="b")
    first.commit(unit(0, "a"), [])
    second.commit(unit(1, "b"), [])
    assert [position.seqno for position in first.positions()] == [4, 4]
    first.take(0, generation=1, token="c")
    with pytest.raises(OwnershipLost):
        second.commit(unit(0, "a", after=4), [])


def test_a_manifest_whose_answer_was_lost_is_known_as_our_own(tmp_path: Path, monkeypatch) -> None:
    """A client repeats such a request, and is told that the name is there."""
    publish = FilePlace.publish
    monkeypatch.setattr(FilePlace, "publish", lambda *given: publish(*given) and publish(*given))
    target = opened(tmp_path)
    target.lay_out(log_id="log", routing=Routing(channels=2), generation=1)
    target.take(0, generation=1, token="a")
    target.commit(unit(0, "a"), [])
    assert [position.seqno for position in target.positions()] == [4, -1]
    assert [manifest.version for manifest in Dataset(FilePlace(str(tmp_path))).manifests()] == [0, 1, 2]


def test_a_directory_that_is_set_back_under_a_lane_is_seen_by_its_next_commit(tmp_path: Path) -> None:
    lake, kept = tmp_path / "lake", tmp_path / "kept"
    target = opened(lake)
    target.lay_out(log_id="log", routing=Routing(channels=2), generation=1)
    target.take(0, generation=1, token="a")
    shutil.copytree(lake, kept)
    target.commit(unit(0, "a"), [])
    shutil.rmtree(lake)
    shutil.copytree(kept, lake)
    with pytest.raises(OwnershipLost):
        target.commit(unit(0, "a", after=4), [])
    assert [position.seqno for position in target.positions()] == [-1, -1]


def test_once_a_day_a_run_removes_what_no_manifest_names(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    opened(tmp_path, now=now).lay_out(log_id="log", routing=Routing(channels=1), generation=1)
    opened(tmp_path, now=now).own(2)
    orphan, young = tmp_path / "public.t" / "0" / "old.parquet", tmp_path / "public.t" / "0" / "young.parquet"
    orphan.parent.mkdir(parents=True)
    for path, age in ((orphan, timedelta(hours=30)), (young, timedelta(0))):
        path.write_bytes(b"")
        os.utime(path, times=((now - age).timestamp(),) * 2)
    opened(tmp_path, now=now + timedelta(hours=1)).own(3)
    assert orphan.exists(), "not a day since the last time"
    opened(tmp_path, now=now + timedelta(hours=23, minutes=59, seconds=60)).own(4)
    assert not orphan.exists()


def test_a_manifest_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    target = opened(tmp_path)
    target.lay_out(log_id="log", routing=Routing(channels=1), generation=1)
    for generation in range(2, 16):
        target.own(generation)
    gone = tmp_path / "_manifests" / f"{12:020d}.json"
    gone.unlink()
    with pytest.raises(EncodeError, match=r"manifests 12 to 12 of .* are gone"):
        opened(tmp_path).own(16)
    with pytest.raises(EncodeError, match=r"manifests 12 to 12 of .* are gone"):
        opened(tmp_path).lay_out(log_id="log", routing=Routing(channels=2), generation=16)
    assert not gone.exists()


def test_a_pipeline_that_is_dropped_leaves_its_files_and_who_they_are_of_to_nobody(tmp_path: Path) -> None:
    target = opened(tmp_path)
    target.lay_out(log_id="log", routing=Routing(channels=1), generation=1)
    assert target.drop(force=False).done
    assert not target.drop(force=False).done
    assert (target.positions(), target.generation(), target.is_installed()) == ((), 0, False)


def test_files_that_are_there_are_fed_no_second_time_where_the_ledger_knows_the_pipeline_yet(tmp_path: Path) -> None:
    """A drop that ends between the directory and the ledger."""
    log, lake = tmp_path / "log", tmp_path / "lake"
    make_log(str(log))
    append(str(log), 0, [[Change("I", 1, "a")]])
    export_changes(open_reader(str(log)), str(lake), ExportOptions())
    dataset = Dataset(FilePlace(str(lake)))
    exported = dataset.newest()
    assert exported is not None
    dataset.commit(replace(exported, version=exported.version + 1, files=(), state=Head().state()))
    with pytest.raises(TargetError, match=r"positions in .* are gone"):
        opened(lake).lay_out(log_id="log", routing=Routing(channels=1), generation=1)


def unit(channel: int, token: str, *, after: int = -1) -> Unit:
    return Unit(
        pipeline="demo",
        generation=1,
        kind=Branch(channel),
        channels=2,
        token=token,
        after_seqno=after,
        last_seqno=after + 5,
        row_count=0,
    )
