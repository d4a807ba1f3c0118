"""Manifests of many commits: few are read, none is lost, and no version is made twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from airflow_parallel_apply.pipeline.encode.files.dataset import Dataset
from airflow_parallel_apply.pipeline.encode.files.manifest import DataFile, FileManifest, manifest_path
from airflow_parallel_apply.pipeline.encode.files.place import FilePlace
from airflow_parallel_apply.pipeline.errors import EncodeError, Unavailable

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


def manifest(version: int, *, writer: str = "me", path: str = "") -> FileManifest:
    return FileManifest(
        version=version,
        log_id="log",
        format="parquet",
        writer=writer,
        created=NOW,
        positions={"0": version},
        kept_as_text=(),
        tables=(),
        files=(
            DataFile(
                path=path or f"t/{version}",
                table="t",
                relation_id=0,
                rows=1,
                bytes_=1,
                first_seqno=version,
                last_seqno=version,
                checksum="",
            ),
        ),
        state={"version": version},
    )


def place() -> FilePlace:
    return FilePlace(f"memory://{uuid4().hex}")


def commit(dataset: Dataset, versions: range) -> None:
    dataset.newest()
    for version in versions:
        dataset.place.write(f"t/{version}", [b"x"])
        assert dataset.commit(manifest(version))


def versions_of(dataset: Dataset) -> list[int]:
    return [file.first_seqno for manifest in dataset.manifests() for file in manifest.files]


@contextmanager
def counted_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    read: list[str] = []
    plain = FilePlace.read
    with monkeypatch.context() as patched:
        patched.setattr(FilePlace, "read", lambda self, path: read.append(path) or plain(self, path))
        yield read


def test_a_directory_of_many_commits_is_opened_by_a_handful_of_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Dataset(place())
    commit(dataset, range(1234))
    with counted_reads(monkeypatch) as read:
        newest = Dataset(dataset.place).newest()
        assert newest == manifest(1233)
        assert len(read) == 1
        read.clear()
        assert versions_of(Dataset(dataset.place)) == list(range(1234))
        assert len(read) == 1 + 2 + 3 + 4


def test_manifests_that_are_merged_long_enough_go_and_nothing_changes() -> None:
    found = place()
    commit(Dataset(found), range(234))
    early = Dataset(found, clock=lambda: NOW + timedelta(hours=1))
    early.sweep()
    assert found.size(manifest_path(0)) is not None
    late = Dataset(found, clock=lambda: NOW + DAY + timedelta(hours=1))
    late.sweep()
    left = [path for path in found.names("_manifests") if "/merged/" not in path]
    assert left == [manifest_path(version) for version in range(229, 234)]
    assert len(found.names("_manifests/merged")) == 2 + 3
    assert versions_of(late) == list(range(234))
    assert late.newest() == manifest(233)
    commit(late, range(234, 260))
    assert versions_of(Dataset(found)) == list(range(260))


def test_a_writer_that_slept_for_days_makes_no_version_that_others_have_made() -> None:
    found = place()
    moment = [NOW]
    sleeper = Dataset(found, clock=lambda: moment[0])
    commit(sleeper, range(5))
    known = sleeper.newest()
    commit(Dataset(found), range(5, 40))
    Dataset(found, clock=lambda: NOW + 2 * DAY).sweep()
    assert found.size(manifest_path(5)) is None, "its name is free again"
    moment[0] = NOW + 2 * DAY
    found.write("t/own", [b"x"])
    assert not sleeper.commit(manifest(5, writer="sleeper", path="t/own"))
    assert found.size(manifest_path(5)) is None
    assert sleeper.newest(known) == manifest(39)


def test_a_writer_that_slept_behind_its_commit_knows_it_among_those_that_others_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = place()
    moment = [NOW]
    sleeper = Dataset(found, clock=lambda: moment[0])
    commit(sleeper, range(5))
    found.write("t/5", [b"x"])
    published = FilePlace.publish

    def sleep(self: FilePlace, path: str, content: bytes) -> bool:
        monkeypatch.setattr(FilePlace, "publish", published)
        assert published(self, path, content)
        commit(Dataset(found), range(6, 20))
        moment[0] = NOW + DAY
        return True

    monkeypatch.setattr(FilePlace, "publish", sleep)
    assert sleeper.commit(manifest(5))
    assert versions_of(Dataset(found)) == list(range(20))


def test_whoever_dies_or_is_refused_while_manifests_are_merged_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = place()
    plain = FilePlace.publish

    def refused(self: FilePlace, path: str, content: bytes) -> bool:
        if "/merged/" in path:
            raise Unavailable("not now")
        return plain(self, path, content)

    with monkeypatch.context() as patched:
        patched.setattr(FilePlace, "publish", refused)
        commit(Dataset(found), range(129))
    assert Dataset(found).newest() == manifest(128)
    assert not found.names("_manifests/merged")
    commit(Dataset(found), range(129, 130))
    assert len(found.names("_manifests/merged")) == 13 + 1
    assert versions_of(Dataset(found)) == list(range(130))


def test_a_directory_of_before_is_read_and_a_damaged_manifest_named(tmp_path: Path) -> None:
    found = FilePlace(str(tmp_path))
    for version in range(25):
        found.publish(manifest_path(version), manifest(version).to_bytes())
    dataset = Dataset(found)
    assert dataset.newest() == manifest(24)
    assert versions_of(dataset) == list(range(25))
    (tmp_path / manifest_path(7)).write_bytes(b"{}")
    with pytest.raises(EncodeError, match="00007"):
        dataset.manifests()


def test_a_directory_that_was_set_back_is_looked_at_anew() -> None:
    found = place()
    dataset = Dataset(found)
    commit(dataset, range(8))
    known = dataset.newest()
    for version in range(5, 8):
        found.remove(manifest_path(version))
    assert dataset.newest(known) == manifest(4)
    for version in range(5, 8):
        assert Dataset(found).commit(manifest(version, writer="another"))
    assert dataset.newest(known) == manifest(7, writer="another")


def test_a_manifest_that_a_listing_misses_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that is listed while files are made in it may have the later one alone."""
    dataset = Dataset(place())
    commit(dataset, range(3))
    listed = FilePlace.names
    monkeypatch.setattr(FilePlace, "names", lambda self, folder: missing(listed(self, folder)))

    def missing(found: list[str]) -> list[str]:
        monkeypatch.setattr(FilePlace, "names", listed)
        commit(Dataset(dataset.place), range(3, 5))
        return [*found, manifest_path(4)]

    assert versions_of(dataset) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("gone", [range(1), range(10), range(35, 38), range(30, 36)])
def test_manifests_that_are_gone_are_told_and_their_files_are_nobody_s_orphans(gone: range) -> None:
    found = place()
    commit(Dataset(found), range(42))
    for path in found.names("_manifests/merged"):
        first, last = (int(number) for number in path.rpartition("/")[2].removesuffix(".json").split("-"))
        if set(gone) & set(range(first, last + 1)) or gone.start == 0:
            found.remove(path)
    for version in gone:
        found.remove(manifest_path(version))
    with pytest.raises(EncodeError, match=f"manifests {gone.start} to {gone[-1]} of .* are gone"):
        Dataset(found).manifests()
    with pytest.raises(EncodeError, match="are gone"):
        Dataset(found, clock=lambda: NOW + 2 * DAY).sweep()
    if gone.start == 0:
        with pytest.raises(EncodeError, match="are gone"):
            Dataset(found).newest()
    assert len(found.names("t")) == 42


def test_what_cannot_be_looked_at_is_not_taken_for_missing(tmp_path: Path) -> None:
    """As when a network file system does not answer."""
    commit(Dataset(FilePlace(str(tmp_path))), range(12))
    merged = tmp_path / "_manifests" / "merged"
    merged.rename(tmp_path / "kept")
    merged.symlink_to(merged.name)
    for look in (Dataset.newest, Dataset.manifests, Dataset.sweep):
        with pytest.raises(Unavailable):
            look(Dataset(FilePlace(str(tmp_path))))
    with pytest.raises(Unavailable):
        FilePlace(str(tmp_path)).size("_manifests/merged/any.json")


def test_files_of_others_in_a_directory_are_left_alone(tmp_path: Path) -> None:
    found = FilePlace(str(tmp_path))
    commit(Dataset(found), range(3))
    inner = Dataset(FilePlace(str(tmp_path / "inner")))
    commit(inner, range(3))
    for path in ("README.md", "2026/11/report.csv", "inner/public.t/0/a.parquet", "public.t/0/orphan.parquet"):
        found.write(path, [b"x"])
    swept = Dataset(found, clock=lambda: NOW + 2 * DAY).sweep()
    assert swept == ("public.t/0/orphan.parquet",)
    assert found.size("inner/public.t/0/a.parquet") == 1
    assert inner.newest() == manifest(2)
