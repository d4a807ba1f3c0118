"""Targets of other kinds under kills: what a reader beside them must never see, and what may be left at the end."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pymysql
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from pyarrow import fs

from airflow_parallel_apply.pipeline.encode.files.dataset import Dataset
from airflow_parallel_apply.pipeline.target.delta.place import CONTROL, lake_of
from airflow_parallel_apply.pipeline.target.delta.tables import open_table
from airflow_parallel_apply.pipeline.target.files.address import FilesAddress
from tests.crash.struck_bucket import StruckBucket
from tests.crash.transfers import ACCOUNTS, CHANGES, TOTAL, UPDATES
from tests.hunt.targets.delta import HuntedDelta
from tests.hunt.targets.delta_feed import HuntedDeltaFeed
from tests.hunt.targets.files import HuntedFiles
from tests.hunt.targets.kafka import HuntedKafka
from tests.hunt.targets.mariadb import HuntedMariaDb
from tests.hunt.targets.protocol import HuntedTarget
from tests.support.step_process import Fault

_TARGET: Final = "airflow_parallel_apply.pipeline.target"


class Reader(Protocol):
    """A reader beside the lanes. Not thread-safe."""

    def look(self) -> str:
        """The part that it sees of a transaction that is there in part; empty: nothing of the kind."""
        ...

    def close(self) -> None: ...


class FilesReader:
    """Reads each manifest once: it has all changes of a transaction, or none."""

    def __init__(self, hunted: HuntedTarget) -> None:
        self._dataset = Dataset(FilesAddress.parse(hunted.url).place())
        self._seen = -1

    def look(self) -> str:
        for manifest in self._dataset.manifests():
            if manifest.version <= self._seen:
                continue
            self._seen = manifest.version
            counts: Counter[int] = Counter()
            for file in manifest.files:
                content = io.BytesIO(self._dataset.place.read(file.path))
                counts.update(pq.read_table(content, columns=["_seqno"]).column(0).to_pylist())
            halves = [seqno for seqno, count in counts.items() if count not in (CHANGES, ACCOUNTS)]
            if halves:
                return f"manifest {manifest.version} has parts of the transactions {sorted(halves)[:5]}"
        return ""

    def close(self) -> None: ...


class DeltaReader:
    """Reads a table as it is at a moment."""

    def __init__(self, hunted: HuntedTarget) -> None:
        self._lake = lake_of(hunted.url)

    def look(self) -> str:
        table = open_table(self._lake, self._lake.table_uri("public", "account"))
        if table is None:
            return ""
        balances = table.to_pyarrow_table(columns=["balance"]).column(0)
        total = pc.sum(balances).as_py()
        return "" if total in (None, TOTAL) else f"{len(balances)} accounts have {total}"

    def close(self) -> None: ...


class DeltaFeedReader:
    """Reads what each version adds, once: it has all changes of a transaction to the table, or none."""

    def __init__(self, hunted: HuntedTarget) -> None:
        self._lake = lake_of(hunted.url)
        self._seen: set[str] = set()

    def look(self) -> str:
        table = open_table(self._lake, self._lake.table_uri("public", "account"))
        if table is None:
            return ""
        added = set(table.file_uris()) - self._seen
        self._seen |= added
        counts: Counter[int] = Counter()
        for file in added:
            read = pq.read_table(self._lake.path(file), columns=["_seqno"], filesystem=self._lake.files)
            counts.update(read.column(0).to_pylist())
        halves = [seqno for seqno, count in counts.items() if count not in (UPDATES, ACCOUNTS)]
        return f"the transactions {sorted(halves)[:5]} are there in part" if halves else ""

    def close(self) -> None: ...


class MariaDbReader:
    """Reads two tables in one statement; a server that is down is asked again later."""

    def __init__(self, hunted: HuntedTarget) -> None:
        parts = urlsplit(hunted.url)
        self._place = {"host": parts.hostname, "port": parts.port, "user": "root", "database": parts.path[1:]}
        self._connection: pymysql.Connection | None = None

    def look(self) -> str:
        try:
            self._connection = self._connection or pymysql.connect(**self._place, autocommit=True)
            with self._connection.cursor() as cursor:
                cursor.execute("SELECT (SELECT sum(balance) FROM account), (SELECT sum(amount) FROM entry)")
                total, moved = cursor.fetchone()
        except pymysql.MySQLError:
            self._connection = None
            return ""
        is_whole = total in (None, TOTAL) and moved in (None, 0)
        return "" if is_whole else f"the accounts have {total}, the entries {moved}"

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class KafkaReader:
    """A consumer of what is committed. What the partition that is read first shows of a transaction, those that are
    read behind it complete.
    """

    def __init__(self, hunted: HuntedTarget) -> None:
        self._address = urlsplit(hunted.url).netloc
        prefix = urlsplit(hunted.url).path[1:]
        self._topics = [f"{prefix}.public.{table}" for table in ("account", "entry")]
        self._consumer = Consumer(
            {"bootstrap.servers": self._address, "group.id": "beside", "isolation.level": "read_committed",
             "enable.auto.commit": False, "enable.partition.eof": True, "fetch.wait.max.ms": 10,
             "auto.offset.reset": "earliest"}
        )  # fmt: skip
        self._reached: dict[tuple[str, int], int] = {}
        self._counts: Counter[int] = Counter()

    def look(self) -> str:
        known = self._consumer.list_topics(timeout=180).topics
        places = [(topic, number) for topic in self._topics if topic in known for number in known[topic].partitions]
        first: set[int] = set()
        for number, place in enumerate(places):
            found = self._read(place)
            self._counts.update(found)
            if number == 0:
                first = set(found)
        if len(places) < len(self._topics):
            return ""
        halves = [seqno for seqno in first if self._counts[seqno] not in (CHANGES, ACCOUNTS)]
        return f"the transactions {sorted(halves)[:5]} are there in part" if halves else ""

    def close(self) -> None:
        self._consumer.close()

    def _read(self, place: tuple[str, int]) -> list[int]:
        """The seqnos of what one partition has more than before."""
        offset = self._reached.get(place, 0)
        self._consumer.assign([TopicPartition(*place, offset)])
        found: list[int] = []
        while True:
            for message in self._consumer.consume(500, 0.2):
                error = message.error()
                if error is None:
                    found += [int(value) for name, value in message.headers() or () if name == "seqno"]
                    offset = message.offset() + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._reached[place] = max(offset, self._reached.get(place, 0))
                    return found
                elif not error.retriable():
                    raise KafkaException(error)


def orphan_files(hunted: HuntedTarget) -> list[str]:
    """The files that a sweep of tomorrow leaves and no manifest names."""
    place = FilesAddress.parse(hunted.url).place()
    dataset = Dataset(place, clock=lambda: datetime.now(UTC) + timedelta(days=2))
    dataset.sweep()
    named = {file.path for manifest in dataset.manifests() for file in manifest.files}
    return sorted({path for path in place.names("") if path.endswith(".parquet")} - named)


def staged_in_lake(hunted: HuntedTarget) -> list[str]:
    lake = lake_of(hunted.url)
    below = fs.FileSelector(lake.path(lake.uri(CONTROL)), recursive=True)
    return [info.path for info in lake.files.get_file_info(below) if re.search(r"/staged/.*\.parquet$", info.path)]


def staged_in_mariadb(hunted: HuntedTarget) -> list[str]:
    assert isinstance(hunted, HuntedMariaDb)
    return hunted.ask("SHOW TABLES IN parallel_apply LIKE 's\\_%'").splitlines()


def staged_for_kafka(hunted: HuntedTarget) -> list[str]:
    directory = Path(urlsplit(hunted.url).query.partition("staging=")[2].partition("&")[0])
    return [str(path) for path in directory.rglob("*") if path.is_file()]


READERS: Final[dict[str, Callable[[HuntedTarget], Reader]]] = {
    "files": FilesReader, "delta": DeltaReader, "delta-feed": DeltaFeedReader, "files in a bucket": FilesReader,
    "delta in a bucket": DeltaReader, "delta-feed in a bucket": DeltaFeedReader,
    "mariadb": MariaDbReader, "kafka": KafkaReader,
}  # fmt: skip
ORPHANS: Final[dict[str, Callable[[HuntedTarget], list[str]]]] = {
    "files": orphan_files, "delta": staged_in_lake, "delta-feed": staged_in_lake, "files in a bucket": orphan_files,
    "delta in a bucket": staged_in_lake, "delta-feed in a bucket": staged_in_lake,
    "mariadb": staged_in_mariadb, "kafka": staged_for_kafka,
}  # fmt: skip
TARGETS: Final[dict[str, Callable[[Path], HuntedTarget]]] = {
    "files": HuntedFiles, "delta": HuntedDelta, "delta-feed": HuntedDeltaFeed,
    "files in a bucket": partial(StruckBucket, "files+s3"), "delta in a bucket": partial(StruckBucket, "delta+s3"),
    "delta-feed in a bucket": partial(StruckBucket, "delta+s3", options="feed=true"),
    "mariadb": HuntedMariaDb, "kafka": HuntedKafka,
}  # fmt: skip
_ASLEEP: Final = {
    "files": Fault(at="airflow_parallel_apply.pipeline.encode.files.place:FilePlace.publish", when="before", call=3),
    "delta": Fault(at=f"{_TARGET}.delta.target:DeltaTarget._finish", when="before"),
    "delta-feed": Fault(at=f"{_TARGET}.delta.target:DeltaTarget._finish", when="before"),
    "mariadb": Fault(at=f"{_TARGET}.mariadb.target:move", when="before"),
    "kafka": Fault(at=f"{_TARGET}.kafka.sending:Sender.send", when="after"),
}


def asleep(name: str) -> Fault:
    """Where a lane falls asleep with a commit in its hand."""
    return _ASLEEP[name.partition(" ")[0]]
