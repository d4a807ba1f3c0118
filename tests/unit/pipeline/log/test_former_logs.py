"""Logs of the version before are read, and written on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from airflow_parallel_apply.pipeline.errors import LogError
from airflow_parallel_apply.pipeline.log.checked_file import checked_bytes, read_checked
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.protocol import PassedOver
from airflow_parallel_apply.pipeline.log.readers import LogReaderEntry, read_readers, register_reader
from airflow_parallel_apply.pipeline.log.remove import remove_log
from airflow_parallel_apply.pipeline.log.writing import open_writer
from airflow_parallel_apply.pipeline.model.change import Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from tests import former
from tests.log_batches import Change, rows_batch, transactions_batch

IDENTITIES = {
    "k_integer": ReplicaIdentity.KEY,
    "i_index": ReplicaIdentity.KEY,
    "i_full_with_key": ReplicaIdentity.FULL,
    "i_full_without_key": ReplicaIdentity.FULL,
    "i_nothing": ReplicaIdentity.NONE,
}
KINDS = {
    "k_smallint": KeyKind.INTEGER,
    "k_integer": KeyKind.INTEGER,
    "k_bigint": KeyKind.INTEGER,
    "k_numeric": KeyKind.DECIMAL,
    "k_numeric_10_2": KeyKind.DECIMAL,
    "k_real": KeyKind.FLOAT,
    "k_double": KeyKind.FLOAT,
    "k_text": KeyKind.TEXT,
    "k_varchar": KeyKind.TEXT,
    "k_char": KeyKind.BLANK_PADDED,
    "k_uuid": KeyKind.UUID,
    "k_date": KeyKind.TIME,
    "k_timestamp": KeyKind.TIME,
    "k_timestamp_3": KeyKind.TIME,
    "k_timestamptz": KeyKind.TIME,
    "k_boolean": KeyKind.EXACT,
    "k_bytea": KeyKind.EXACT,
    # What lies below a domain, or that a type is an enum, that log does not say.
    "k_domain_numeric": KeyKind.NOT_CANONICAL,
    "k_enum": KeyKind.NOT_CANONICAL,
    "k_interval": KeyKind.NOT_CANONICAL,
}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return shutil.copytree(former.LOG, tmp_path / "log").as_posix()


def last_manifest(url: str) -> dict[str, object]:
    return read_checked(max((Path(url) / "manifests").iterdir()))


def test_its_offsets_are_read(url: str) -> None:
    body = last_manifest(url)
    state = open_reader(url).state()
    assert state.captured_offset == body["captured_lsn"]
    assert state.registered_offset > 0
    assert state.resume is not None
    assert state.place.release_offset == state.resume.offset < state.captured_offset
    assert state.passed_over == (
        PassedOver(
            schema="public", table="k_oid", below_offset=state.captured_offset, recopy_id="4f6c", oid=12345
        ),
    )  # fmt: skip
    assert state.sightings
    assert all(0 < sighting.offset <= state.captured_offset for sighting in state.sightings)


def test_its_identity_is_read_under_the_names_of_now(url: str) -> None:
    body = read_checked(Path(url) / "log.json")
    identity = open_reader(url).identity
    assert (identity.server, identity.stream, identity.selection) == (
        body["system_identifier"],
        body["slot"],
        body["publication"],
    )


def test_its_readers_are_known(url: str) -> None:
    entry = LogReaderEntry(pipeline="test", server="7", database="shop", place="here")
    folder = Path(url) / "readers"
    folder.mkdir()
    body = {"pipeline": "test", "system_identifier": "7", "database": "shop", "place": "here"}
    (folder / entry.file_name).write_bytes(checked_bytes(body))
    assert read_readers(url) == (entry,)
    assert not register_reader(url, entry)


def test_it_is_removed_with_its_own_stream_alone(url: str) -> None:
    with pytest.raises(LogError, match="is the log of stream parallel_apply_test_0, not of another"):
        remove_log(url, stream="another")
    assert remove_log(url, stream="parallel_apply_test_0")


def test_its_transactions_are_read(url: str) -> None:
    reader = open_reader(url)
    found = reader.transactions(-1, reader.state().last_seqno)
    begins, ends = (found.column(name).to_pylist() for name in ("commit_offset", "end_offset"))
    assert begins == sorted(begins)
    assert all(begin < end for begin, end in zip(begins, ends, strict=True))
    assert ends[-1] <= reader.state().captured_offset


def test_its_definitions_are_read(url: str) -> None:
    relations = {relation.table: relation for relation in open_reader(url).state().relations}
    assert {name: relations[name].replica_identity for name in IDENTITIES} == IDENTITIES
    assert {name: relations[name].by_image for name in IDENTITIES if relations[name].by_image} == {
        "i_full_without_key": True
    }
    assert {name: relations[name].key_kinds[0] for name in KINDS} == KINDS
    again = Relation.from_json(json.loads(json.dumps(relations["k_three"].to_json())))
    assert again == relations["k_three"]


def test_it_is_written_on(url: str) -> None:
    before = open_reader(url).state()
    writer = open_writer(url)
    seqno = before.last_seqno + 1
    writer.append(rows_batch([Change(seqno=seqno, fragno=0, key="1")]), transactions_batch(seqno, [1]))
    writer.commit(before.captured_offset + 10)
    after = open_reader(url).state()
    assert (after.last_seqno, after.captured_offset) == (seqno, before.captured_offset + 10)
    assert (after.resume, after.passed_over, after.relations) == (before.resume, before.passed_over, before.relations)
    assert after.sightings
    assert "lsn" not in json.dumps({**last_manifest(url), "sightings": (), "relations": ()})
