"""Abilities that a source's connector may have beside those of `SourceConnector`; who asks looks whether it has."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.log.protocol import LogState
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.source.protocol import Look, OpenLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """The server that is the log's source now. `former`: the one that the log had; equal to `server` where nothing
    changed. `offset`: where the source's place in its stream is; `proof`: why nothing is lost, for people.
    """

    pipeline: str
    former: str
    server: str
    offset: Offset
    proof: str

    @property
    def is_new(self) -> bool:
        """True if the log has another source now."""
        return self.former != self.server


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """An adoption, and what the log is to record of it. `released`: see `LogWriter.release`."""

    adoption: Adoption
    look: Look
    released: tuple[Offset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vouched:
    """The record that the log gets of tables that somebody vouches for. `doubts`: what was in doubt, for people."""

    look: Look
    doubts: tuple[str, ...]


class Adopting(Protocol):
    """Proves that a server may take the place of a log's source. Errors: `SourceError`, `ConfigurationError`,
    `LogError`, `Unavailable`.
    """

    def adopt(self, log: LogState) -> Adopted:
        """Prove that this server holds everything that the log lacks."""
        ...

    def release(self, log: LogState) -> Adopted:
        """Prove that the log has everything, before this server is replaced. Changes nothing."""
        ...

    def vouch(self, log: LogState, tables: Sequence[tuple[str, str]]) -> Vouched:
        """Take tables for proven whose older rows may have other values than the stream tells: a person knows that they
        have not. Errors: `ConfigurationError` for a table that nothing of the kind was done to.
        """
        ...

    def let_go(self, adopted: Adopted) -> Adoption:
        """Let go up to where `release` said, once the log has recorded it."""
        ...


@runtime_checkable
class Adoptable(Protocol):
    """A connector whose servers can take one another's place."""

    def adopting(
        self, endpoint: Endpoint, config: PipelineConfig, log: OpenLog, *, op: str
    ) -> AbstractContextManager[Adopting]:
        """`op`: the name of the command, for people."""
        ...


@runtime_checkable
class SendsDdl(Protocol):
    """A connector whose databases can be taught to send their DDL."""

    def install_ddl_capture(self, endpoint: Endpoint, *, grant_to: Sequence[str]) -> tuple[str, ...]:
        """Let DDL messages of a database prove who sent them; says what was done. `grant_to`: who may send."""
        ...
