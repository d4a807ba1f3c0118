"""The log's protocol, as its callers see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_parallel_apply.pipeline.errors import ConfigurationError, LogError
from airflow_parallel_apply.pipeline.log import LogReader, WriterOptions, log_exists, open_reader
from airflow_parallel_apply.pipeline.log.remove import remove_log
from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.log.segment import UNLINKED
from airflow_parallel_apply.pipeline.log.writing import create_log, open_writer
from tests.log_batches import (
    IDENTITY,
    START,
    Change,
    history,
    random_history,
    rows_batch,
    transactions_batch,
)
from tests.support.log_rows import relation
from tests.support.routers import served_logs
from tests.support.variants import gated

Reading = Callable[[str], LogReader]

END = 2**62
NO_ROWS = rows_batch([])
NO_TRANSACTIONS = transactions_batch(0, [])
SMALL_SEGMENTS = WriterOptions(segment_file_bytes=2000, small_file_bytes=1, buffer_bytes=6000)


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = str(tmp_path / "log")
    create_log(url, IDENTITY)
    return url


@pytest.fixture(params=["directory", "router"])
def reading(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reading]:
    """Opens a reader of the log in a directory: of the directory itself, or of the router that serves it."""
    if request.param == "directory":
        yield open_reader
        return
    with served_logs(tmp_path) as router:
        yield lambda url: open_reader(f"{router}/{Path(url).name}")


def in_order(reader: LogReader) -> pa.Table:
    return pa.Table.from_batches(reader.rows(-1, END, in_order=True), schema=ROWS).select(UNLINKED.names)


def has_files(reader: LogReader) -> bool:
    """False of a router's log, which has none here."""
    if reader.root is not None:
        return True
    with pytest.raises(LogError, match="the router's"):
        reader.row_files(-1, END)
    return False


def test_a_log_is_created_once_and_says_what_it_is_a_log_of(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/a%20log"
    assert not log_exists(url)
    create_log(url, IDENTITY)
    assert log_exists(str(tmp_path / "a log"))
    assert open_reader(url).identity == IDENTITY
    assert open_reader(url).state().last_seqno == -1
    with pytest.raises(LogError, match="already holds a log"):
        create_log(url, IDENTITY)


def test_a_scheme_other_than_file_is_refused() -> None:
    for url in ("s3://bucket/log", "file://host/log", ""):
        with pytest.raises(ConfigurationError, match="log_url"):
            log_exists(url)


def test_a_router_serves_the_logs_that_are_there_and_tells_who_asks_for_another(tmp_path: Path) -> None:
    create_log(str(tmp_path / "log"), IDENTITY)
    with served_logs(tmp_path) as router:
        assert log_exists(f"{router}/log")
        assert open_reader(f"{router}/log").identity == IDENTITY
        assert not log_exists(f"{router}/later")
        with pytest.raises(ConfigurationError, match="serves no log 'later'"):
            open_reader(f"{router}/later")
        create_log(str(tmp_path / "later"), IDENTITY)
        assert log_exists(f"{router}/later")
        reader = open_reader(f"{router}/log")
        remove_log(str(tmp_path / "log"), stream=IDENTITY.stream)
        create_log(str(tmp_path / "log"), replace(IDENTITY, log_id="another"))
        with pytest.raises(LogError, match="log log-1 is asked for"):
            reader.state()
        for needs_the_directory in (open_writer, lambda url: create_log(url, IDENTITY)):
            with pytest.raises(ConfigurationError, match=r"names a router.*the directory"):
                needs_the_directory(f"{router}/log")


def test_a_router_that_changed_the_manifests_on_the_way_is_found_out(tmp_path: Path) -> None:
    create_log(str(tmp_path / "log"), IDENTITY)
    (path,) = (tmp_path / "log" / "manifests").iterdir()
    with served_logs(tmp_path) as router:
        reader = open_reader(f"{router}/log")
        later = path.with_name(f"{1:020d}.json")
        later.write_bytes(path.read_bytes().replace(b'"version":0', b'"version":1'))
        with pytest.raises(LogError, match="does not match its checksum"):
            reader.state()


def test_opening_a_directory_without_a_log_names_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"log\.json is missing.*mounted"):
        open_reader(str(tmp_path))


def test_another_sources_log_is_refused(url: str) -> None:
    with pytest.raises(LogError, match="its stream is 'parallel_apply', not 'other'"):
        open_writer(url, expected=replace(IDENTITY, stream="other"))
    open_writer(url, expected=replace(IDENTITY, log_id="", created=START + timedelta(days=1)))


def test_a_log_of_another_format_is_refused_and_can_still_be_removed(tmp_path: Path, reading: Reading) -> None:
    url = str(tmp_path / "old")
    create_log(url, replace(IDENTITY, format=1))
    for opened in (reading, open_writer):
        with pytest.raises(LogError, match=r"format 1, and this version knows 2 .*parallel-apply drop"):
            opened(url)
    assert remove_log(url, stream=IDENTITY.stream)
    assert not (tmp_path / "old").exists()


def test_what_was_appended_is_read_back_in_order_and_without_order(url: str, reading: Reading) -> None:
    writer = open_writer(url)
    batches = [history(0, 100), history(100, 50)]
    for rows, transactions in batches:
        writer.append(rows, transactions)
    assert reading(url).state().last_seqno == -1
    state = writer.commit(500)
    reader = reading(url)
    assert reader.state() == state
    assert (state.last_seqno, state.captured_offset) == (149, 500)
    assert state.last_commit_time == START + timedelta(seconds=149)
    expected = pa.Table.from_batches([rows for rows, _ in batches])
    assert in_order(reading(url)).equals(expected)
    assert pa.Table.from_batches(reader.rows(-1, END)).num_rows == expected.num_rows
    assert reader.transactions(-1, END).equals(pa.Table.from_batches([each for _, each in batches]))


def test_a_range_of_seqnos_is_read_with_the_columns_asked_for(url: str, reading: Reading) -> None:
    writer = open_writer(url)
    writer.append(*history(0, 100))
    writer.commit(1)
    reader = reading(url)
    part = pa.Table.from_batches(reader.rows(10, 20, columns=["key", "seqno"], in_order=True))
    assert part.column_names == ["key", "seqno"]
    assert part.column("seqno").to_pylist() == [seqno for seqno in range(11, 21) for _ in range(3)]
    assert reader.transactions(10, 20).column("seqno").to_pylist() == list(range(11, 21))
    assert list(reader.rows(200, 300)) == []
    assert not has_files(reader) or reader.row_files(200, 300) == ()
    rest = pa.Table.from_batches(reader.rows(10, 11, columns=["fragno"], in_order=True, after_fragno=0))
    assert rest.column("fragno").to_pylist() == [1, 2]


@gated
def test_a_huge_transaction_spans_segments_and_is_seen_whole_or_not_at_all(url: str, reading: Reading) -> None:
    writer = open_writer(url, options=SMALL_SEGMENTS)
    writer.append(*history(0, 5))
    expected = [history(0, 5)[0]]
    for part in range(20):
        changes = [
            Change(seqno=5, fragno=part * 50 + number, key=str(number), values=(f"{part}-{number}" * 3,))
            for number in range(50)
        ]
        expected.append(rows_batch(changes))
        writer.append(expected[-1], NO_TRANSACTIONS)
    with pytest.raises(LogError, match=r"rows and no end.*seqno 5"):
        writer.commit(1)
    assert reading(url).state().last_seqno == -1
    writer.append(NO_ROWS, transactions_batch(5, [1000]))
    writer.append(*history(6, 5))
    state = writer.commit(1)
    pieces = [segment for segment in state.segments if segment.first_seqno == segment.last_seqno == 5]
    assert len(pieces) > 3
    assert all(after.first_fragno == before.last_fragno + 1 for before, after in pairwise(pieces))
    assert in_order(reading(url)).equals(pa.Table.from_batches([*expected, history(6, 5)[0]]))
    assert reading(url).transactions(-1, END).column("seqno").to_pylist() == list(range(11))
    tail = pa.Table.from_batches(reading(url).rows(4, 5, columns=["fragno"], in_order=True, after_fragno=700))
    assert tail.column("fragno").to_pylist() == list(range(701, 1000))


@gated
def test_one_large_batch_is_cut_into_segments(url: str, reading: Reading) -> None:
    writer = open_writer(url, options=SMALL_SEGMENTS)
    rows, transactions = history(0, 300)
    writer.append(rows, transactions)
    state = writer.commit(1)
    assert len(state.segments) > 5
    assert sum(segment.transaction_count for segment in state.segments) == 300
    assert in_order(reading(url)).equals(pa.Table.from_batches([rows]))


def test_the_halves_of_a_key_change_lie_in_one_segment(url: str) -> None:
    writer = open_writer(url, options=WriterOptions(segment_file_bytes=1, small_file_bytes=1))
    left = Change(seqno=0, fragno=0, key="1", operation="X", values=("1",))
    arrived = Change(seqno=0, fragno=1, key="2", operation="K", values=("2",))
    writer.append(rows_batch([left]), NO_TRANSACTIONS)
    writer.append(rows_batch([arrived]), transactions_batch(0, [2]))
    state = writer.commit(1)
    assert [segment.row_count for segment in state.segments] == [2]


def test_transactions_without_rows_are_kept(url: str, reading: Reading) -> None:
    writer = open_writer(url)
    writer.append(NO_ROWS, transactions_batch(0, [0, 0]))
    state = writer.commit(1)
    reader = reading(url)
    assert state.last_seqno == 1
    assert not has_files(reader) or reader.row_files(-1, END) == ()
    assert list(reader.rows(-1, END)) == []
    assert reader.transactions(-1, END).num_rows == 2


@pytest.mark.parametrize(
    ("rows", "transactions"),
    [
        pytest.param(*history(1, 2), id="a gap"),
        pytest.param(history(0, 2)[0], transactions_batch(1, [3, 3]), id="transactions ahead"),
        pytest.param(history(0, 3)[0], transactions_batch(0, [3]), id="two open transactions"),
        pytest.param(
            rows_batch([Change(seqno=0, fragno=1, key="1"), Change(seqno=0, fragno=0, key="1")]),
            transactions_batch(0, [2]),
            id="fragnos backwards",
        ),
    ],
)
def test_rows_that_are_not_the_next_ones_are_refused_and_change_nothing(
    url: str, rows: pa.RecordBatch, transactions: pa.RecordBatch
) -> None:
    writer = open_writer(url)
    with pytest.raises(LogError, match="append"):
        writer.append(rows, transactions)
    writer.append(*history(0, 2))
    assert writer.commit(1).last_seqno == 1


def test_rows_behind_the_end_of_their_transaction_are_refused(url: str) -> None:
    writer = open_writer(url)
    writer.append(*history(0, 2))
    with pytest.raises(LogError, match="append"):
        writer.append(rows_batch([Change(seqno=1, fragno=3, key="1")]), NO_TRANSACTIONS)


def test_a_commit_without_news_makes_no_version_and_one_with_a_new_offset_makes_one(url: str) -> None:
    writer = open_writer(url)
    writer.commit(7)
    manifests = sorted(path.name for path in (Path(url) / "manifests").iterdir())
    writer.commit(7)
    assert sorted(path.name for path in (Path(url) / "manifests").iterdir()) == manifests
    assert open_reader(url).state().captured_offset == 7
    with pytest.raises(LogError, match="went back"):
        writer.commit(6)


def test_relations_are_numbered_once_and_a_changed_definition_is_reported_once(url: str, reading: Reading) -> None:
    only, more = (relation(-5, "t", columns, key="id") for columns in ("id", "id a"))
    writer = open_writer(url)
    assert writer.relation_id(only) == (1, False)
    assert writer.relation_id(only) == (1, False)
    assert writer.relation_id(more) == (2, True)
    assert writer.relation_id(more) == (2, False)
    writer.abandon()
    assert writer.relation_id(only) == (1, False)
    writer.commit(1)
    writer = open_writer(url)
    assert writer.relation_id(more) == (2, True)
    assert writer.relation_id(only) == (3, True)
    state = writer.commit(2)
    assert [each.relation_id for each in reading(url).state().relations] == [1, 2, 3]
    assert state.relation(3).columns == only.columns
    with pytest.raises(LogError, match="relation 4"):
        state.relation(4)


def test_what_a_definition_of_an_earlier_version_lacks_is_added_once(url: str) -> None:
    before = relation(1, "t", "id", key="id")
    computing = replace(relation(1, "c", "id", key="id"), computed=("g",))
    writer = open_writer(url)
    assert [writer.relation_id(one) for one in (before, computing)] == [(1, False), (2, False)]
    again = [replace(before, computed=(), computed_numbers=()), replace(computing, computed_numbers=(2,))]
    assert [writer.relation_id(one) for one in (*again, computing)] == [(1, False), (3, False), (3, False)]
    assert writer.latest_relation("public", "c") == replace(again[1], relation_id=3)


def test_a_long_log_opens_from_its_last_checkpoint(url: str, reading: Reading) -> None:
    writer = open_writer(url, options=WriterOptions(checkpoint_every=4))
    for number in range(10):
        writer.append(*history(number, 1))
        writer.commit(number + 1)
    for version in range(8):
        (Path(url) / "manifests" / f"{version:020d}.json").write_text("unread")
    assert reading(url).state() == writer.state()


def test_an_open_reader_sees_later_commits(url: str, reading: Reading) -> None:
    reader = reading(url)
    writer = open_writer(url)
    for number in range(3):
        writer.append(*history(number, 1))
        assert writer.commit(number + 1) == reader.state()


def test_a_log_that_is_restored_in_place_is_read_anew_by_whoever_has_it_open(url: str, reading: Reading) -> None:
    """Files that are the same in both stay as they are, as `rsync --delete` leaves it; log.json, too."""
    first = history(0, 2)
    writer = open_writer(url)
    writer.append(*first)
    writer.commit(1)
    kept = set((Path(url) / "manifests").iterdir())
    opened = open_reader(url)
    for value in ("lost", "new"):
        later = history(2, 3, value=value)
        writer = open_writer(url)
        writer.append(*later)
        writer.commit(2)
        for reader in (opened, reading(url)):
            assert in_order(reader).equals(pa.Table.from_batches([first[0], later[0]]))
        for path in set((Path(url) / "manifests").iterdir()) - kept:
            path.unlink()
        assert opened.state().last_seqno == 1


@gated
def test_row_groups_in_the_manifest_are_those_of_the_file(url: str) -> None:
    writer = open_writer(url)
    writer.append(*random_history(20_000, seed=1))
    (segment,) = writer.commit(1).segments
    (path,) = open_reader(url).row_files(-1, END)
    metadata = pq.ParquetFile(path).metadata
    assert metadata.num_row_groups == len(segment.row_groups) > 4
    for number, group in enumerate(segment.row_groups):
        buckets = metadata.row_group(number).column(ROWS.get_field_index("bucket")).statistics
        assert metadata.row_group(number).num_rows == group.row_count
        assert group.first_bucket <= buckets.min <= buckets.max <= group.last_bucket


@gated
def test_eight_channels_read_about_one_scan_of_a_large_segment(url: str) -> None:
    writer = open_writer(url, options=WriterOptions(segment_file_bytes=18 * 2**20))
    writer.append(*random_history(110_000, seed=2))
    segment = writer.commit(1).segments[0]
    assert segment.file_bytes >= 16 * 2**20
    metadata = pq.ParquetFile(open_reader(url).row_files(-1, END)[0]).metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    sizes = [sum(group.column(index).total_compressed_size for index in range(group.num_columns)) for group in groups]
    footers_and_indexes = segment.file_bytes - sum(sizes)
    read = 0
    for channel in range(8):
        first, last = channel * 128, channel * 128 + 127
        read += footers_and_indexes
        for group, size in zip(groups, sizes, strict=True):
            buckets = group.column(ROWS.get_field_index("bucket")).statistics
            read += size if buckets.min <= last and buckets.max >= first else 0
    assert read < 1.3 * segment.file_bytes
