"""Writing an export's messages: workers encode slices of portions, which are sent in the order of rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.encode.pool import Pool
from airflow_parallel_apply.pipeline.encode.progress import Progress
from airflow_parallel_apply.pipeline.encode.ranges import cursors
from airflow_parallel_apply.pipeline.encode.stream import range_count
from airflow_parallel_apply.pipeline.errors import ConfigurationError, EncodeError
from airflow_parallel_apply.pipeline.export.options import ExportOptions
from airflow_parallel_apply.pipeline.export.protocol import Portion, Stretch
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress, MessageFormat
from airflow_parallel_apply.pipeline.target.kafka.check import has_messages, retyped_columns
from airflow_parallel_apply.pipeline.target.kafka.messages import TableMessages, table_messages
from airflow_parallel_apply.pipeline.target.kafka.registry import registered_schema_id
from airflow_parallel_apply.pipeline.target.kafka.sending import BY_KEY, Sender, produce
from airflow_parallel_apply.pipeline.target.kafka.staging import messages_of
from airflow_parallel_apply.pipeline.target.kafka.topics import Topics

_POLL_EVERY = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Encoded:
    """Messages of some rows: of a query `key` and `value`, of changes as the target stages them."""

    topic: str
    messages: pa.RecordBatch
    is_query: bool


class TopicWriter:
    """Sends the messages of one attempt inside its transaction. `rows`, `bytes_`: what was handed over."""

    def __init__(
        self,
        address: KafkaAddress,
        topics: Topics,
        producer: Any,
        options: ExportOptions,
        cancelled: Callable[[], bool],
    ) -> None:
        self._address = address
        self._all_topics = topics
        self._sender = Sender(address, topics, channels=1)
        self._producer = producer
        self._options = options
        self._cancelled = cancelled
        self._tables: dict[int, TableMessages] = {}
        self._counts: Mapping[str, int] = {}
        self._begins = False
        self._lock = threading.Lock()
        self.rows = self.bytes_ = 0
        self.topics: set[str] = set()
        self.texts: set[str] = set()

    def write(self, stretch: Stretch, texts: Collection[str], progress: Progress, *, is_first: bool) -> None:
        """Encode side by side, and send in order. `is_first`: nothing says what the topics have. Errors: those of the
        pool.
        """
        if stretch.export_id and self._address.format is MessageFormat.DEBEZIUM:
            raise ConfigurationError(
                "a query has rows, and Debezium's envelope is one of changes", op="export", hint="Take json or avro."
            )
        address = replace(self._address, text_columns=tuple(texts))
        self._counts = self._all_topics.counts()
        # A query's rows change nothing of what others have sent.
        self._begins = is_first and not stretch.export_id
        with progress.attempt() as count:

            def works() -> Iterator[Callable[[], Iterator[_Encoded]]]:
                # In slices, and not by key: a truncate stands in its place among all rows.
                for portion in stretch.portions(lambda rows: count(rows, 0)):
                    for cursor in cursors(portion.rows, [], range_count(portion.rows, self._options.threads)):
                        yield partial(self._encoded, address, portion, cursor.open)

            def send(encoded: _Encoded) -> None:
                size = pc.sum(pc.binary_length(encoded.messages.column("value"))).as_py() or 0
                self._send(encoded, stretch.export_id)
                self.rows += encoded.messages.num_rows
                self.bytes_ += size
                self.topics.add(encoded.topic)
                count(encoded.messages.num_rows, size)

            Pool(threads=self._options.threads, cancelled=self._cancelled).ordered(works(), send)

    def _encoded(
        self, address: KafkaAddress, portion: Portion, opened: Callable[[], Iterator[pa.RecordBatch]]
    ) -> Iterator[_Encoded]:
        table = self._table(address, portion)
        topic = address.topic(portion.relation.name)
        for batch in opened():
            if portion.commit_times is not None:
                yield _Encoded(topic=topic, messages=table.of(batch, portion.commit_times), is_query=False)
            else:
                typed = portion.typed(batch, table.typing)
                columns = {"key": table.keys_of(typed), "value": table.values.messages(typed)}
                yield _Encoded(topic=topic, messages=pa.RecordBatch.from_pydict(columns), is_query=True)

    def _send(self, encoded: _Encoded, export_id: str) -> None:
        if not encoded.is_query:
            self._sender.send(self._producer, messages_of(encoded.topic, [encoded.messages]))
            return
        self._all_topics.ensure(encoded.topic, partitions=self._address.partitions, is_compacted=False)
        pairs = zip(*(column.to_pylist() for column in encoded.messages.columns), strict=True)
        for number, (key, value) in enumerate(pairs):
            headers = [("export", export_id.encode()), ("row", b"%d" % (self.rows + number))]
            produce(self._producer, encoded.topic, value, key, BY_KEY, {"headers": headers})
            if number % _POLL_EVERY == 0:
                self._producer.poll(0)

    def _table(self, address: KafkaAddress, portion: Portion) -> TableMessages:
        relation = portion.relation
        with self._lock:
            if relation.relation_id not in self._tables:
                trouble = address.topic_trouble(relation)
                if trouble is not None:
                    raise ConfigurationError(
                        f"table {relation.name} {trouble}", op="export", hint="Leave it out of the export."
                    )
                self._require_fitting(address, relation)
                found = table_messages(
                    address,
                    relation,
                    schema_id=partial(registered_schema_id, address.registry),
                    typing=portion.typing(address.texts(relation.name)),
                )
                self.texts.update(f"{relation.name}.{name}" for name in found.typing.texts)
                self._tables[relation.relation_id] = found
            return self._tables[relation.relation_id]

    def _require_fitting(self, address: KafkaAddress, relation: Relation) -> None:
        """Refuse a topic that has messages which these would not go with."""
        topic = address.topic(relation.name)
        count = self._counts.get(topic)
        if count is None:
            return
        if self._begins and has_messages(address, topic, count):
            raise EncodeError(
                f"topic {topic} has messages, and {address.exports_topic} does not say of which changes",
                op="export",
                hint="Export to a prefix of its own; or delete the topic, if nobody needs it.",
            )
        if names := retyped_columns(address, relation, count):
            raise EncodeError(
                f"table {relation.name} has messages whose key does not have {', '.join(names)} as the source's text, "
                "which they have to be now: a row would have two keys",
                op="export",
                table=relation.name,
                column=names[0],
                hint="Export to another prefix, with these columns as text from the beginning (texts, --text).",
            )
