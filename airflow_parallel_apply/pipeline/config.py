"""A pipeline's parameters, as its user gives them, checked once, at the edge.

Connections carry secrets, and travel as `Endpoint` beside it, whose text form hides them; the router's is the one that
is part of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.open import place_of, scheme_of
from airflow_parallel_apply.pipeline.stream.address import log_address, log_path
from airflow_parallel_apply.service.address import is_service

MAX_CHANNELS: Final = 64
MAX_DEFAULT_LANES: Final = 8
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
_SLOT: Final = re.compile(r"[a-z0-9_]{1,56}")


class Start(StrEnum):
    """The state of the target that the first run finds, or makes."""

    COPY = "copy"
    """The target's tables have no rows, and get the source's."""
    EMPTY = "empty"
    """Both sides' tables have no rows; anything else is refused."""
    EQUAL = "equal"
    """The user says that both sides hold the same rows now."""


class DdlPolicy(StrEnum):
    """The reaction to a DDL message (`parallel_apply.send_ddl('…')` at the source), and to columns that were changed
    there without one.
    """

    REFUSE = "refuse"
    """The run stops there."""
    APPLY = "apply"
    """The target follows, as far as the log tells what to do."""
    SKIP = "skip"
    """Messages are passed over: somebody changes the target by hand. Columns that he forgot stop the run."""


class PartitionerName(StrEnum):
    """How rows find their channel; an installed package may bring others."""

    KEY = "key"
    """By a hash of their key."""
    SHARD = "shard"
    """By a hash of their shard, transactions whole."""
    SHARD_LIST = "shard_list"
    """By a file that gives shards their channels, transactions whole."""
    ROUND_ROBIN = "round_robin"
    """Transactions in turn: for tables without a key."""


class StoreName(StrEnum):
    """The kind of place where a channel's events wait."""

    AUTO = "auto"
    """The one that suits partitioner, channels and consistency: see `store.choice`."""
    LOG = "log"
    """In the log, which is scanned by channel."""
    CHANNEL_LOG = "channel_log"
    """In a log for each channel, beside the log."""
    MEMORY = "memory"
    """In the memory of a router, which streams them."""


class Consistency(StrEnum):
    """When a branch becomes visible."""

    CHANNEL = "channel"
    """As soon as its channel has it; a transaction's rows in several channels one after the other."""
    EPOCH = "epoch"
    """With all other branches of its epoch, in order: the target goes from one state of the source to a later one."""


class EpochProtocol(StrEnum):
    """How the branches of a group become visible together, under `Consistency.EPOCH`."""

    AUTO = "auto"
    """`two_phase`, which the benchmarks show to be faster, where the target can prepare transactions; elsewhere
    `leader_merge`.
    """
    LEADER_MERGE = "leader_merge"
    """All channels stage, one lane merges everything in one transaction."""
    TWO_PHASE = "two_phase"
    """Each channel merges in a transaction of its own and prepares it; one lane commits all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePatterns:
    """The source tables that a pipeline follows: shell patterns over `schema.table`. Errors: `ConfigurationError`."""

    include: tuple[str, ...] = ("public.*",)
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.include:
            raise _wrong("tables", "no include pattern", "at least one pattern, such as public.*")
        for pattern in (*self.include, *self.exclude):
            if pattern.startswith("!"):
                raise _wrong("tables", pattern, f"{pattern[1:]} in exclude, without !, for tables to leave out")

    def matches(self, schema: str, table: str) -> bool:
        """True if the table is followed."""
        name = f"{schema}.{table}"
        return any(fnmatchcase(name, pattern) for pattern in self.include) and not any(
            fnmatchcase(name, pattern) for pattern in self.exclude
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A database's address, kept out of every text form."""

    conn_id: str
    url: str = field(repr=False)
    ledger: Endpoint | None = None
    """A target's place for its pipelines' ledger; None: the target's own database."""

    @property
    def steering(self) -> Endpoint:
        """A target's database for its pipelines' ledger, and for their queue where none is named."""
        return self.ledger or self

    @property
    def scheme(self) -> str:
        """The scheme, which chooses the implementation of the source or target."""
        return scheme_of(self.url)

    @property
    def place(self) -> str:
        """`host:port/database`, for people: without secrets."""
        return place_of(self.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEndpoint:
    """The place of a pipeline's queue, if not its target's database: another database, or a service (`grpc://`,
    `grpcs://`). The connection string may hold a password or a token, and is kept out of every text form.
    """

    conn_id: str
    dsn: str = field(repr=False)

    @property
    def place(self) -> str:
        """Protocol, host, port and database, without secrets."""
        if not is_service(self.dsn):
            return f"{scheme_of(self.dsn)}://{place_of(self.dsn)}"
        protocol, _, rest = self.dsn.partition("://")
        address = re.split(r"[/?#]", rest, maxsplit=1)[0]
        return f"{protocol}://{address.rpartition('@')[2]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterEndpoint:
    """The router of the store `memory`, a service (`grpc://`, `grpcs://`). The URL may hold a token, and is kept out of
    every text form.
    """

    conn_id: str
    url: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    """One pipeline. Errors: `ConfigurationError`, which names the parameter and what it takes."""

    pipeline: str
    log_url: str = field(repr=False)
    """A directory that every worker sees, or a log that a router serves; that URL may hold a token."""
    log_directory: str = ""
    """With the `log_url` of a router: the directory of that log. Only the task capture, and the router, see it."""
    slot: str = ""
    """The name under which the source keeps the log's place in its stream; empty: `default_slot`. Pipelines that
    read one log have one name.
    """
    tables: TablePatterns = TablePatterns()
    start: Start = Start.COPY
    create_tables: bool = False
    """With start=copy: make tables that the target lacks as the source has them."""
    channels: int = 4
    lanes: int = 0
    """Airflow slots used at the same time; 0: as channels, at most MAX_DEFAULT_LANES."""
    partitioner: str = PartitionerName.KEY
    """A `PartitionerName`, or that of an entry point."""
    shard_by: tuple[tuple[str, str], ...] = ()
    """Pairs of a pattern over `schema.table` and an expression: the shard of such a table's rows."""
    shard_file: str = ""
    """The shard list, a file; read when the pipeline is routed, which keeps what it said."""
    store: StoreName = StoreName.AUTO
    router: RouterEndpoint | None = None
    """That of the store `memory`; None: the embedded one of the host."""
    consistency: Consistency = Consistency.CHANNEL
    epoch_protocol: EpochProtocol = EpochProtocol.AUTO
    ddl: DdlPolicy = DdlPolicy.REFUSE
    epoch_max_changes: int = 100_000
    epoch_max_bytes: int = 64 * 2**20
    unit_max_bytes: int = 256 * 2**20
    """Bounds what a lane claims at once, in bytes of values; one larger epoch is still one unit."""
    error_values: bool = False
    """True: errors about applied changes quote the rows that the target refused; they name table, column and key
    anyway. Errors stand in task logs, XCom, the queue and `status`.
    """
    lease: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.pipeline):
            raise _wrong("pipeline", self.pipeline, "a lower-case name of up to 40 letters, digits and _")
        if not self.log_url:
            raise _wrong(
                "log_url",
                self.log_url,
                "a directory that every worker sees, file:///… or /…, or a router's log, grpcs://…",
            )
        self._check_log()
        if self.slot and not _SLOT.fullmatch(self.slot):
            raise _wrong("slot", self.slot, "a lower-case name of up to 56 letters, digits and _")
        if not 1 <= self.channels <= MAX_CHANNELS:
            raise _wrong("channels", self.channels, f"1 to {MAX_CHANNELS}")
        if not 0 <= self.lanes <= MAX_CHANNELS:
            raise _wrong("lanes", self.lanes, f"0 (as channels, at most {MAX_DEFAULT_LANES}) to {MAX_CHANNELS}")
        if self.create_tables and self.start is not Start.COPY:
            raise _wrong("create_tables", self.create_tables, "effect with start=copy only")
        self._check_partitioner()
        for name in ("epoch_max_changes", "epoch_max_bytes", "unit_max_bytes"):
            if getattr(self, name) < 1:
                raise _wrong(name, getattr(self, name), "a positive number")
        if self.lease < timedelta(seconds=3):
            raise _wrong("lease", self.lease, "three seconds or more")

    @property
    def is_served(self) -> bool:
        """True if the log is read through a router, so that only capture sees its directory."""
        return is_service(self.log_url)

    def at_directory(self) -> PipelineConfig:
        """The same for whoever writes the log, in its directory. Errors: `ConfigurationError` where none is named."""
        if not self.is_served:
            return self
        if not self.log_directory:
            raise ConfigurationError(
                "log_url names a router, and whoever captures needs the log's directory",
                pipeline=self.pipeline,
                hint="Give log_directory, too: the directory that the router serves under this name.",
            )
        return replace(self, log_url=self.log_directory, log_directory="")

    @property
    def stream(self) -> str:
        """The name under which the source keeps the log's place in its stream."""
        return self.slot or default_slot(self.pipeline)

    @property
    def commits_in_groups(self) -> bool:
        """True if channels commit together. One alone commits whole transactions in order by itself."""
        return self.consistency is Consistency.EPOCH and self.channels > 1

    @property
    def lane_count(self) -> int:
        """How many mapped tasks a run launches."""
        return min(self.lanes or min(self.channels, MAX_DEFAULT_LANES), self.channels)

    def _check_log(self) -> None:
        if not self.is_served:
            if self.log_directory:
                raise _wrong("log_directory", self.log_directory, "a directory where log_url is a router's, grpcs://…")
            log_path(self.log_url)
            return
        log_address(self.log_url)
        if is_service(self.log_directory):
            raise _wrong("log_directory", "a router's URL", "a directory")
        if self.store is StoreName.CHANNEL_LOG:
            raise _wrong("store", self.store, "another one with a router's log_url: its files lie beside the log")

    def _check_partitioner(self) -> None:
        if not _NAME.fullmatch(self.partitioner):
            raise _wrong("partitioner", self.partitioner, "/".join(PartitionerName) + " or an installed one's name")
        by_shard = self.partitioner in (PartitionerName.SHARD, PartitionerName.SHARD_LIST)
        if by_shard and not self.shard_by:
            raise _wrong("shard_by", "nothing", f"an expression with partitioner={self.partitioner}, such as tenant_id")
        if self.partitioner == PartitionerName.SHARD_LIST and not self.shard_file:
            raise _wrong("shard_file", "nothing", "the path of a shard list with partitioner=shard_list")
        if self.partitioner in (PartitionerName.KEY, PartitionerName.ROUND_ROBIN) and self.shard_by:
            raise _wrong("shard_by", self.shard_by, f"nothing with partitioner={self.partitioner}")
        if self.partitioner in set(PartitionerName) - {PartitionerName.SHARD_LIST} and self.shard_file:
            raise _wrong("shard_file", self.shard_file, f"nothing with partitioner={self.partitioner}")


def default_slot(pipeline: str) -> str:
    """The name of a pipeline's own slot."""
    return f"parallel_apply_{pipeline}"


def shard_pairs(words: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """`shard_by` from a command line: `pattern=expression`, or an expression for all tables."""
    pairs = (word.split("=", 1) for word in words)
    return tuple((pair[0].strip(), pair[1].strip()) if len(pair) == 2 else ("*", pair[0]) for pair in pairs)


def _wrong(name: str, value: object, takes: str) -> ConfigurationError:
    return ConfigurationError(f"parameter {name}: {value!r} is not usable", hint=f"{name} takes {takes}.")
