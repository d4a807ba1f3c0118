"""The address of a Kafka target: `kafka://[login:password@]host:port[,host:port]/prefix?option=value`.

Options with a dot in their names are librdkafka's own (`security.protocol`, `ssl.ca.location`), the others are those of
`KafkaAddress`. `staging` is required: what Spark's workers encode waits there until a lane sends it, so that both must
see it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.model.change import Relation

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,100}")
_FIXED: Final = frozenset(
    {
        "acks",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.idempotence",
        "isolation.level",
        "partitioner",
        "transactional.id",
    }
)
_POSITIONS: Final = "_positions"
_EXPORTS: Final = "_exports"
TRANSACTION_MS: Final = 300_000
"""How long a transaction may be open before the broker aborts it, unless the address says otherwise."""


class MessageFormat(StrEnum):
    """The form of a message's key and value."""

    JSON = "json"
    """A flat object: the row, and what became of it."""
    DEBEZIUM = "debezium"
    """Debezium's envelope."""
    AVRO = "avro"
    """Confluent's wire format, with the ids of a schema registry."""


class PartitionBy(StrEnum):
    """The choice of a message's partition. Either way all messages of a key are in one."""

    KEY = "key"
    """The message's key, as Java's clients do it."""
    CHANNEL = "channel"
    """The range of hashes that a channel has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaAddress:
    """Where to send, and how. `partitions`, `replication`: of topics that the target makes; -1: as the broker does.
    `text_columns`: `schema.table.column` of columns that keep the source's text.
    """

    servers: str
    prefix: str
    staging: str
    format: MessageFormat = MessageFormat.JSON
    partition_by: PartitionBy = PartitionBy.KEY
    tombstones: bool = False
    partitions: int = -1
    replication: int = -1
    registry: str = field(default="", repr=False)
    text_columns: tuple[str, ...] = ()
    client: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def parse(cls, endpoint: Endpoint, *, is_staged: bool = True) -> KafkaAddress:
        """Read an endpoint's URL. `is_staged`: what is sent is staged before. Errors: `ConfigurationError`, which names
        the option.
        """
        parts = urlsplit(endpoint.url)
        login, _, servers = parts.netloc.rpartition("@")
        prefix = unquote(parts.path.strip("/"))
        if not servers:
            raise _wrong("host", servers, "one broker or several, host:port,host:port")
        if not _NAME.fullmatch(prefix):
            raise _wrong("schema", prefix, "the topics' prefix: letters, digits, '.', '_' and '-'")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        client = {name: value for name, value in options.items() if "." in name}
        if login:
            user, _, password = login.partition(":")
            client = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"} | client
            client |= {"sasl.username": unquote(user), "sasl.password": unquote(password)}
        for name in sorted(_FIXED & (client.keys() | options.keys())):
            raise _wrong(name, (client | options)[name], "no value: exactly once depends on it")
        ours = _ours(options, is_staged=is_staged)
        return cls(servers=servers, prefix=prefix, client=tuple(sorted(client.items())), **ours)

    @property
    def client_options(self) -> dict[str, Any]:
        """The options that every client of librdkafka is made with."""
        return {"bootstrap.servers": self.servers, **dict(self.client)}

    @property
    def transaction_ms(self) -> int:
        """How long a transaction may be open before the broker aborts it."""
        return int(dict(self.client).get("transaction.timeout.ms", TRANSACTION_MS))

    @property
    def positions_prefix(self) -> str:
        """The beginning of the names of all pipelines' position topics."""
        return f"{self.prefix}.{_POSITIONS}."

    @property
    def exports_topic(self) -> str:
        """The compacted topic that says what exports have sent; the transactional id of exports, too."""
        return f"{self.prefix}.{_EXPORTS}"

    def positions_topic(self, pipeline: str) -> str:
        """The compacted topic of a pipeline's positions."""
        return self.positions_prefix + pipeline

    def topic(self, table: str) -> str:
        """The topic of the changes of `schema.table`."""
        return f"{self.prefix}.{table}"

    def topic_trouble(self, relation: Relation) -> str | None:
        """Why a table can have no topic of its own, as the rest of a sentence; None if it can."""
        if not all(re.fullmatch(r"[a-zA-Z0-9_-]+", name) for name in (relation.schema, relation.table)):
            return "has a name that no topic can have: letters, digits, '_' and '-' are allowed"
        if relation.schema in (_POSITIONS, _EXPORTS) or len(self.topic(relation.name)) > 249:
            return "has a name that its topic cannot have"
        return None

    def texts(self, table: str) -> tuple[str, ...]:
        """The columns of `schema.table` that keep the source's text."""
        prefix = f"{table}."
        return tuple(name.removeprefix(prefix) for name in self.text_columns if name.startswith(prefix))

    def transactional_id(self, pipeline: str, channel: int | None) -> str:
        """The id whose holder may move the channel (None: all channels)."""
        return f"{self.prefix}.{pipeline}.{'all' if channel is None else channel}"


def _ours(options: dict[str, str], *, is_staged: bool) -> dict[str, Any]:
    taken = {name: value for name, value in options.items() if "." not in name and value}
    found: dict[str, Any] = {"staging": taken.pop("staging", "")}
    if is_staged and not found["staging"]:
        raise _wrong("staging", "", "a directory, or the URL of one, that lanes and Spark's workers see")
    for name, kind in (("format", MessageFormat), ("partition_by", PartitionBy)):
        if name in taken:
            word = taken.pop(name)
            if word not in set(kind):
                raise _wrong(name, word, " or ".join(kind))
            found[name] = kind(word)
    if "tombstones" in taken:
        word = taken.pop("tombstones").lower()
        if word not in ("true", "false"):
            raise _wrong("tombstones", word, "true or false")
        found["tombstones"] = word == "true"
    for name in ("partitions", "replication"):
        if name in taken:
            word = taken.pop(name)
            if not word.isdigit() or word == "0":
                raise _wrong(name, word, "a positive number")
            found[name] = int(word)
    if "registry" in taken:
        found["registry"] = taken.pop("registry")
    if (found.get("format") is MessageFormat.AVRO) != bool(found.get("registry")):
        raise _wrong("registry", found.get("registry", ""), "the URL of a schema registry, with format=avro")
    if "text_columns" in taken:
        found["text_columns"] = tuple(word.strip() for word in taken.pop("text_columns").split(","))
    for name, value in taken.items():
        raise _wrong(name, value, "no value: there is no such option")
    return found


def _wrong(name: str, value: object, takes: str) -> ConfigurationError:
    return ConfigurationError(f"the target's option {name}: {value!r} is not usable", hint=f"{name} takes {takes}.")
