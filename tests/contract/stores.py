"""A store over a log of fifty transactions, and what may become of it before its branches are read."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow.parquet as pq

from airflow_parallel_apply.pipeline.config import PipelineConfig, RouterEndpoint, StoreName
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.model.epoch import Branch, Unit, UnitKind
from airflow_parallel_apply.pipeline.model.position import Position
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.store.channel_log.feeder import ChannelLogFeeder
from airflow_parallel_apply.pipeline.store.feed import feed_stretch
from airflow_parallel_apply.pipeline.store.open import open_feeder, open_store
from airflow_parallel_apply.pipeline.store.protocol import Feeder, FileBranch, Store, StoreBranch, StreamBranch, Stretch
from tests.support.memory_router import streamed
from tests.support.written_log import Change, append, make_log

LAST = 49
CHANNELS = 4
ROUTING = Routing(channels=CHANNELS)
WHOLE = Stretch(-1, LAST)


def written_log(url: str) -> LogReader:
    """A log of fifty transactions of one row each."""
    make_log(url)
    append(url, 0, [[Change("I", number, "a")] for number in range(LAST + 1)])
    return open_reader(url)


@dataclass(frozen=True, kw_only=True)
class StoreCase:
    """A log, and what the store of this name serves of it."""

    name: StoreName
    log: LogReader
    router: RouterEndpoint | None = None
    channel_of: list[int] = field(init=False)
    """The channel of each of the fifty rows."""

    def __post_init__(self) -> None:
        rows = self.log.rows(-1, LAST, columns=["bucket"])
        found = [bucket * CHANNELS // 1024 for batch in rows for bucket in batch.column("bucket").to_pylist()]
        object.__setattr__(self, "channel_of", found)

    def store(self) -> Store:
        return open_store(self._config(), self.log)

    def feeder(self) -> Feeder | None:
        return open_feeder(self._config(), self.log, ROUTING)

    def feed(self, *stretches: Stretch) -> Feeder | None:
        feeder = self.feeder()
        if feeder is not None:
            for stretch in stretches:
                feed_stretch(self.log, ROUTING, feeder, stretch)
        return feeder

    def channel_files(self) -> list[Path]:
        assert self.log.root is not None
        return sorted(self.log.root.glob("channels/*/*/*.parquet"))

    def counted(self, asked: Unit) -> Unit:
        """With the rows that the plan would count."""
        return replace(asked, row_count=len(self.seqnos(asked)))

    def seqnos(self, asked: Unit) -> list[int]:
        between = range(asked.after_seqno + 1, asked.last_seqno + 1)
        return [seqno for seqno in between if self.channel_of[seqno] == asked.channel]

    def _config(self) -> PipelineConfig:
        return PipelineConfig(pipeline="p", log_url=str(self.log.root), store=self.name, router=self.router)


def unit(kind: UnitKind, after_seqno: int, last_seqno: int) -> Unit:
    return Unit(
        pipeline="p",
        generation=1,
        kind=kind,
        channels=CHANNELS,
        token="t",
        after_seqno=after_seqno,
        last_seqno=last_seqno,
        row_count=0,
    )


def positions(*seqnos: int) -> tuple[Position, ...]:
    return tuple(
        Position(channel=channel, seqno=seqno, generation=1, claim="t") for channel, seqno in enumerate(seqnos)
    )


def read(branch: StoreBranch) -> list[int]:
    """The sequence numbers that a branch's condition leaves of what is served."""
    assert branch.condition is not None
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE log (seqno, bucket)")
    match branch:
        case FileBranch():
            rows = pq.read_table(list(branch.files), columns=["seqno", "bucket"]).to_pylist()
        case StreamBranch():
            rows = [row for batch in streamed(branch) for row in batch.select(["seqno", "bucket"]).to_pylist()]
    database.executemany("INSERT INTO log VALUES (:seqno, :bucket)", rows)
    bounds = [branch.after_seqno, branch.last_seqno]
    chosen = f"SELECT seqno FROM log WHERE seqno > ? AND seqno <= ? AND ({branch.condition})"
    return sorted(seqno for (seqno,) in database.execute(chosen, bounds))


def nothing(case: StoreCase) -> None:
    """Nobody has fed it."""


def fed(case: StoreCase) -> None:
    case.feed(WHOLE)


def fed_in_pieces(case: StoreCase) -> None:
    case.feed(Stretch(-1, 14), Stretch(14, 15), Stretch(15, LAST))


def fed_in_part(case: StoreCase) -> None:
    case.feed(Stretch(-1, 14), Stretch(20, LAST))


def fed_twice(case: StoreCase) -> None:
    for _ in range(2):
        case.feed(WHOLE)


def fed_with_an_overlap(case: StoreCase) -> None:
    case.feed(Stretch(-1, 20), Stretch(12, LAST))


def fed_by_one_that_died(case: StoreCase) -> None:
    feeder = case.feeder()
    if isinstance(feeder, ChannelLogFeeder):
        feeder._buffer_bytes = 1  # type: ignore[attr-defined]
        feeder.finish = lambda stretch, mark: False  # type: ignore[method-assign]
        feed_stretch(case.log, ROUTING, feeder, WHOLE)


def trimmed(case: StoreCase) -> None:
    feeder = case.feed(Stretch(-1, 14), Stretch(14, LAST))
    if feeder is not None:
        feeder.trim(positions(14, 14, LAST, 14))


def lost(case: StoreCase) -> None:
    case.feed(WHOLE)
    for path in case.channel_files():
        path.unlink()


def torn(case: StoreCase) -> None:
    case.feed(WHOLE)
    for path in case.channel_files():
        path.write_bytes(path.read_bytes()[:-9] + b"\0" * 9)


def doubted(case: StoreCase) -> None:
    case.feed(WHOLE)
    case.store().doubt(unit(Branch(0), 9, 29))


def index_torn(case: StoreCase) -> None:
    case.feed(WHOLE)
    assert case.log.root is not None
    for path in case.log.root.glob("channels/*/held/*.json"):
        path.write_bytes(b"{}")


WAYS: tuple[Callable[[StoreCase], None], ...] = (
    nothing, fed, fed_in_pieces, fed_in_part, fed_twice, fed_with_an_overlap, fed_by_one_that_died,
    trimmed, lost, torn, doubted, index_torn,
)  # fmt: skip
