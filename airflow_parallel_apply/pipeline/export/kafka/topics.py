"""Topics as an export's place: one Kafka transaction for each export, with a record of what the topics have then.

The record is in `<prefix>._exports`, whose name is the transactional id, too: who begins an export ends whoever was at
it, aborts what was not committed, and reads a record that nobody else can change any more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, Final

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.encode.formats import Format
from airflow_parallel_apply.pipeline.encode.progress import Progress
from airflow_parallel_apply.pipeline.errors import ConfigurationError, EncodeError, OwnershipLost, Unavailable
from airflow_parallel_apply.pipeline.export.kafka.writing import TopicWriter
from airflow_parallel_apply.pipeline.export.options import ExportOptions
from airflow_parallel_apply.pipeline.export.protocol import QUERIES, Held, Stretch
from airflow_parallel_apply.pipeline.export.report import ExportReport
from airflow_parallel_apply.pipeline.log.mark import Mark
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO
from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress, MessageFormat
from airflow_parallel_apply.pipeline.target.kafka.client import fence, kafka_errors
from airflow_parallel_apply.pipeline.target.kafka.records import last_records, removed_records
from airflow_parallel_apply.pipeline.target.kafka.sending import finished, open_transaction, produce
from airflow_parallel_apply.pipeline.target.kafka.topics import Topics

_PLACE: Final = "place"
_DONE: Final = "done:"
_TIMEOUT: Final = ("transaction.timeout.ms", "900000")
"""The longest that brokers allow by themselves."""


class TopicPlace:
    """See `Place`."""

    def __init__(self, url: str, options: ExportOptions, cancelled: Callable[[], bool]) -> None:
        if options.format not in (None, *(Format(name) for name in MessageFormat)):
            raise ConfigurationError(
                f"parameter format: {options.format} is not usable for topics", hint="Topics take json, debezium, avro."
            )
        if options.format is not None:
            url = f"{url}{'&' if '?' in url else '?'}format={options.format}"
        address = KafkaAddress.parse(Endpoint(conn_id="place", url=url), is_staged=False)
        if _TIMEOUT[0] not in dict(address.client):
            address = replace(address, client=(*address.client, _TIMEOUT))
        self._address = address
        self._options = options
        self._cancelled = cancelled

    @property
    def url(self) -> str:
        return f"kafka://{self._address.servers}/{self._address.prefix}"

    @property
    def format(self) -> str:
        return self._address.format

    @property
    def texts(self) -> tuple[str, ...]:
        return self._address.text_columns

    @contextmanager
    def attempt(self) -> Iterator[TopicAttempt]:
        topic = self._address.exports_topic
        try:
            with kafka_errors("export"):
                topics = Topics(self._address)
                if any(name.startswith(self._address.positions_prefix) for name in topics.counts()):
                    raise EncodeError(
                        f"{self.url} has the topics of a pipeline, which feeds them",
                        op="export",
                        hint="Export to a prefix of its own.",
                    )
                topics.ensure(topic, partitions=1, is_compacted=True)
                _require_kept(topic, topics)
                producer = fence(self._address, [topic])[topic]
                writer = TopicWriter(self._address, topics, producer, self._options, self._cancelled)
                records, are_cut = last_records(self._address, topic)
                if are_cut:
                    _require_known(topic, records)
                with open_transaction(producer):
                    yield TopicAttempt(topic, records, writer, producer)
        except OwnershipLost as error:
            raise Unavailable(
                f"another export into {self.url} began, or this one took longer than transaction.timeout.ms",
                op="export",
                hint="Run one at a time; give the URL a longer timeout, which the brokers have to allow "
                "(transaction.max.timeout.ms), or export less at once (until_seqno).",
            ) from error


class TopicAttempt:
    """See `Attempt`."""

    def __init__(self, topic: str, records: dict[str, Any], writer: TopicWriter, producer: Any) -> None:
        self._topic = topic
        self._records = records
        self._writer = writer
        self._producer = producer

    @property
    def held(self) -> Held | None:
        found = self._records.get(_PLACE)
        if found is None:
            return None
        mark = found.get("mark")
        return Held(**{**found, "texts": tuple(found["texts"]), "mark": Mark(**mark) if mark else None})

    def has(self, export_id: str) -> bool:
        return _DONE + export_id in self._records

    def write(self, stretch: Stretch, texts: Collection[str], progress: Progress) -> None:
        self._writer.write(stretch, texts, progress, is_first=self.held is None)

    def commit(self, stretch: Stretch, held: Held) -> ExportReport | None:
        written = self._writer
        if stretch.export_id:
            self._put(_DONE + stretch.export_id, {"rows": written.rows})
        self._put(_PLACE, asdict(held))
        finished(self._producer)
        return ExportReport(
            first_seqno=stretch.first_seqno,
            last_seqno=stretch.last_seqno,
            version=None,
            rows=written.rows,
            bytes_=written.bytes_,
            topics=tuple(sorted(written.topics)),
            texts=tuple(sorted(written.texts)),
            export_id=stretch.export_id,
        )

    def nothing(self, export_id: str) -> ExportReport:
        held = self.held
        position = NO_SEQNO if held is None else held.position
        return ExportReport(
            first_seqno=None if export_id else position + 1,
            last_seqno=None if export_id else position,
            version=None,
            rows=0,
            bytes_=0,
            texts=() if held is None else held.texts,
            export_id=export_id,
        )

    def _put(self, key: str, value: dict[str, Any]) -> None:
        produce(self._producer, self._topic, json.dumps(value).encode(), key.encode(), 0, {})


def _require_kept(topic: str, topics: Topics) -> None:
    """Refuse a topic of records that was made as brokers make others."""
    if (removal := topics.removal(topic)) is not None:
        setting, keep = removal
        raise ConfigurationError(
            f"topic {topic} has {setting}, by which brokers remove what it says of exports", op="export", hint=keep
        )


def _require_known(topic: str, records: Mapping[str, Any]) -> None:
    """Refuse a topic of which retention has removed the only record of changes, or any: it may have been a query's."""
    place = records.get(_PLACE)
    if place is None or place["origin"] == QUERIES:
        raise removed_records(topic, 0, op="export", instead="Export to another prefix.")
