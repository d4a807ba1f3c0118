"""Dropping a pipeline whose log is damaged."""

from __future__ import annotations

from pathlib import Path

from airflow_parallel_apply.pipeline.log.readers import LogReaderEntry, reader_path, register_reader
from tests.integration.admin.test_drop import doomed, dropped, slots  # noqa: F401  # a fixture
from tests.support.rig import Rig
from tests.support.variants import gated


@gated
def test_the_slot_of_a_log_whose_identity_is_damaged_does_not_stay(rig: Rig) -> None:
    identity = Path(rig.config.log_url) / "log.json"
    identity.write_bytes(identity.read_bytes().replace(b"doomed", b"doored"))
    removal = dropped(rig, with_log=True)
    assert not slots(rig)
    assert [("does not match its checksum" in one.what, one.command[:5]) for one in removal.left] == [(True, "rm -r")]


@gated
def test_the_stream_of_a_log_with_a_damaged_reader_stays_for_others(rig: Rig) -> None:
    another = LogReaderEntry(pipeline="another", server="1", database="d", place="there")
    register_reader(rig.config.log_url, another)
    path = reader_path(rig.config.log_url, another)
    path.write_bytes(path.read_bytes().replace(b"another", b"anotter"))
    (left,) = dropped(rig).left
    assert f"{path} does not match its checksum; remove that file" in left.what
    path.unlink()
    dropped(rig)
    assert not slots(rig)
