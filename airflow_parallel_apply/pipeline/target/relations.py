"""The part of a log that a target asks for: definitions by id, the tables that there are, times of transactions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.log.commit_times import CommitTimes
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.protocol import LogReader, LogState
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.names_since import names_since


class Relations(Protocol):
    """The definitions of a log."""

    def __call__(self, relation_id: int) -> Relation:
        """One by its id."""
        ...

    def names(self, after_seqno: int) -> Collection[tuple[str, str]]:
        """Schema and name of each table that is followed: what it has behind this seqno, and what it gets later."""
        ...

    def all_names(self) -> Collection[tuple[str, str]]:
        """The former names of these tables, too."""
        ...

    def definitions(self) -> Sequence[Relation]:
        """All, the oldest first."""
        ...

    def commit_times(self, after_seqno: int, last_seqno: int) -> CommitTimes:
        """When the transactions in (after_seqno, last_seqno] committed."""
        ...


class LogRelations:
    """See `Relations`. The log is opened when it is first asked; without one it can be asked nothing."""

    def __init__(self, log_url: str | None, pipeline: str) -> None:
        self._log_url = log_url
        self._pipeline = pipeline
        self._reader: LogReader | None = None

    def __call__(self, relation_id: int) -> Relation:
        return self._state().relation(relation_id)

    def names(self, after_seqno: int) -> Collection[tuple[str, str]]:
        return names_since(self._state().relations, after_seqno)

    def all_names(self) -> Collection[tuple[str, str]]:
        return {(relation.schema, relation.table) for relation in self._state().relations}

    def definitions(self) -> Sequence[Relation]:
        return self._state().relations

    def commit_times(self, after_seqno: int, last_seqno: int) -> CommitTimes:
        return CommitTimes.of_log(self._log(), after_seqno, last_seqno)

    def _state(self) -> LogState:
        return self._log().state()

    def _log(self) -> LogReader:
        if self._log_url is None:
            raise ConfigurationError(
                "this session was opened without a log, so it cannot apply", pipeline=self._pipeline
            )
        if self._reader is None:
            self._reader = open_reader(self._log_url)
        return self._reader
