"""An export into topics: one transaction with a record of how far it comes; what is killed, late or repeated adds
nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_parallel_apply.demo.kafka import KafkaBroker
from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.encode.formats import Format
from airflow_parallel_apply.pipeline.encode.progress import Progress
from airflow_parallel_apply.pipeline.errors import (
    ConfigurationError,
    EncodeError,
    OwnershipLost,
    TargetError,
    Unavailable,
)
from airflow_parallel_apply.pipeline.export import ExportOptions, ExportReport, export_changes
from airflow_parallel_apply.pipeline.export.kafka.topics import TopicAttempt, TopicPlace
from airflow_parallel_apply.pipeline.export.protocol import QUERIES, Held, Stretch
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO
from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress
from airflow_parallel_apply.pipeline.target.kafka.client import fence, kafka_errors
from airflow_parallel_apply.pipeline.target.kafka.sending import open_transaction, produce
from tests.support import exported_files
from tests.support.kafka import committed

CHANGES = [(seqno, operation, id_, v) for seqno, _, operation, id_, v in exported_files.CHANGES]
TOPIC = "shop.public.t"


@pytest.fixture
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker(default_partitions=1) as found:
        yield found


def export(broker: KafkaBroker, log_url: str, *, query: str = "", **more: Any) -> ExportReport:
    call = {name: more.pop(name) for name in ("report", "cancelled") if name in more}
    url = f"kafka://{broker.address}/shop{query}"
    return export_changes(open_reader(log_url), url, ExportOptions(**more), **call)


def sent(broker: KafkaBroker, *, isolation: str = "read_committed") -> list[tuple[Any, ...]]:
    """The topic's messages in their order."""
    rows = [json.loads(read.value or b"") for read in committed(broker.address, TOPIC, isolation=isolation)]
    return [(row["_seqno"], row["_operation"], row["id"], row["v"]) for row in rows]


@pytest.mark.parametrize("threads", [1, 4])
def test_every_change_is_there_once_in_its_order_and_again_changes_nothing(
    broker: KafkaBroker, log_url: str, threads: int
) -> None:
    first = export(broker, log_url, threads=threads, until_seqno=1)
    assert (first.first_seqno, first.last_seqno, first.rows, first.topics) == (0, 1, 4, (TOPIC,))
    assert sent(broker) == CHANGES[:4]
    again = export(broker, log_url, until_seqno=1)
    assert str(again) == "nothing to export: the place comes up to seqno 1"
    assert str(export(broker, log_url, window_bytes=1)).startswith("exported seqnos 2 to 4: 3 rows")
    assert export(broker, log_url).rows == 0
    assert sent(broker) == CHANGES
    keys = [read.key for read in committed(broker.address, TOPIC)]
    assert keys[0] == b'{"id":1}'
    assert keys[5] is None, "a truncate has no key"


def test_what_an_export_sent_that_did_not_end_nobody_sees(broker: KafkaBroker, log_url: str) -> None:
    def cut_off(encoded: object) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        export(broker, log_url, report=cut_off)
    assert sent(broker) == []
    with pytest.raises(Unavailable, match="cancelled"):
        export(broker, log_url, cancelled=lambda: True)
    assert export(broker, log_url).rows == 7
    assert sent(broker) == CHANGES


KILLED = """
import os, sys
from airflow_parallel_apply.pipeline.export import ExportOptions, export_changes
from airflow_parallel_apply.pipeline.log.open import open_reader
export_changes(open_reader(sys.argv[1]), sys.argv[2], ExportOptions(), report=lambda encoded: os._exit(9))
"""


def test_a_killed_export_leaves_nothing_and_the_next_one_is_exact(broker: KafkaBroker, log_url: str) -> None:
    place = f"kafka://{broker.address}/shop"
    assert subprocess.run([sys.executable, "-c", KILLED, log_url, place], timeout=120).returncode == 9
    assert export(broker, log_url).rows == 7
    assert sent(broker) == CHANGES


def test_an_export_that_another_one_overtakes_adds_nothing(broker: KafkaBroker, log_url: str) -> None:
    overtaken = False

    def overtake(encoded: object) -> None:
        nonlocal overtaken
        if not overtaken:
            overtaken = True
            export(broker, log_url)

    with pytest.raises(Unavailable, match=r"another export into kafka://.* began"):
        export(broker, log_url, report=overtake)
    assert sent(broker) == CHANGES
    assert export(broker, log_url).rows == 0


def test_one_that_learns_it_between_two_messages_says_so_too(broker: KafkaBroker) -> None:
    address = KafkaAddress.parse(Endpoint(conn_id="place", url=f"kafka://{broker.address}/shop"), is_staged=False)
    former = fence(address, ["one"])["one"]

    def send_while_it_may() -> None:
        # Without a poll, which would hear of it, too.
        with kafka_errors("export"), open_transaction(former):
            for _ in range(12_000):
                produce(former, TOPIC, b"", b"", 0, {})
                time.sleep(0.01)

    fence(address, ["one"])
    with pytest.raises(OwnershipLost):
        send_while_it_may()


def test_a_record_of_exports_that_brokers_may_remove_is_refused(broker: KafkaBroker, log_url: str) -> None:
    broker.state.create("shop._exports", 1)
    with pytest.raises(ConfigurationError, match=r"topic shop\._exports has cleanup\.policy=delete, .*--bootstrap-"):
        export(broker, log_url)
    broker.state.settings["shop._exports"]["cleanup.policy"] = "compact"
    assert export(broker, log_url).rows == 7
    records = broker.state.topics["shop._exports"][0]
    records.removed = records.end
    records.log.clear()
    with pytest.raises(TargetError, match=r"records of partition 0 of topic shop\._exports were removed"):
        export(broker, log_url)
    del broker.state.topics["shop._exports"]
    with pytest.raises(EncodeError, match=r"topic shop\.public\.t has messages, and shop\._exports does not say"):
        export(broker, log_url)
    assert sent(broker) == CHANGES


def test_ids_of_queries_that_retention_removed_are_no_sign_that_nothing_was_sent(broker: KafkaBroker) -> None:
    """Some are still there: the newest, and those of segments that were not whole."""

    @contextmanager
    def attempt() -> Iterator[TopicAttempt]:
        with TopicPlace(f"kafka://{broker.address}/shop", ExportOptions(), lambda: False).attempt() as begun:
            yield begun

    def send(export_id: str) -> None:
        with attempt() as begun:
            stretch = Stretch(
                first_seqno=None,
                last_seqno=None,
                total_rows=None,
                server="",
                database="",
                export_id=export_id,
                mark=None,
                portions=lambda passed_over: iter(()),
            )
            begun.write(stretch, (), Progress(None, total_rows=None))
            begun.commit(stretch, Held(origin=QUERIES, format="json", position=NO_SEQNO, texts=(), mark=None))

    for export_id in ("monday", "tuesday"):
        send(export_id)
    with attempt() as begun:
        assert begun.has("monday")
    records = broker.state.topics["shop._exports"][0]
    del records.log[0]
    records.removed = records.log[0].offset
    with pytest.raises(TargetError, match=r"records of .* were removed, .*another prefix"), attempt():
        pass


def test_keys_have_one_form_in_all_exports(broker: KafkaBroker, log_url: str) -> None:
    export(broker, log_url, until_seqno=1)
    with pytest.raises(EncodeError, match=r"table public\.t has messages whose key does not have id"):
        export(broker, log_url, texts=("public.t.id",))
    assert export(broker, log_url).rows == 3


def test_columns_keep_their_text_as_the_url_says(broker: KafkaBroker, log_url: str) -> None:
    assert export(broker, log_url, query="?text_columns=public.t.id").texts == ("public.t.id",)
    assert committed(broker.address, TOPIC)[0].key == b'{"id":"1"}'
    assert export(broker, log_url).texts == ("public.t.id",)


def test_places_of_others_are_left_alone(broker: KafkaBroker, log_url: str, tmp_path: Path) -> None:
    export(broker, log_url)
    with pytest.raises(EncodeError, match="the format is json, and not debezium"):
        export(broker, log_url, query="?format=debezium")
    broker.state.create("feed._positions.demo", 1)
    with pytest.raises(EncodeError, match="the topics of a pipeline"):
        export_changes(open_reader(log_url), f"kafka://{broker.address}/feed", ExportOptions())
    with pytest.raises(ConfigurationError, match="not usable for topics"):
        export_changes(open_reader(log_url), f"kafka://{broker.address}/csv", ExportOptions(format=Format.CSV))
