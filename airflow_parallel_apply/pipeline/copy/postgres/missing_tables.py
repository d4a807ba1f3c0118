"""Tables that the target lacks, made in the transaction that copies their rows."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import psycopg

from airflow_parallel_apply.pipeline.copy.postgres.definitions import Definitions, read_definitions, sequence_value
from airflow_parallel_apply.pipeline.copy.postgres.making import (
    make_rest,
    make_tables,
    possible,
    rehearse_making,
    set_sequences,
)
from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.source.postgres.session import Session as SourceSession
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import missing_tables
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session

_logger = logging.getLogger(__name__)

_MADE_SO = (
    "The table was made as the source has it, so a type of that name has another definition at the target. Give it the "
    "source's, or make the table by hand; then recopy it again."
)


class MissingTables:
    """Makes the source's tables that the target lacks. `wanted`: False makes none.

    Foreign keys are not made: the copy is ahead of the tables to which they refer, until a run has passed it.
    """

    def __init__(self, reading: SourceSession, *, wanted: bool) -> None:
        self._reading = reading
        self._wanted = wanted

    @contextmanager
    def rehearsed(self, session: Session, relations: Sequence[Relation]) -> Iterator[tuple[Relation, ...]]:
        """The block finds the tables there, without rows, and nothing stays. Yields those that were made.

        Errors: `ConfigurationError`, `TargetError` for what cannot be made.
        """
        if not self._wanted:
            yield ()
            return
        with session.transaction("recopy", is_brief=False) as connection:
            missing = missing_tables(connection, relations)
            rehearse_making(connection, replace(self._definitions(missing), references=()))
            yield missing
            raise psycopg.Rollback

    def make(self, connection: Connection, relations: Sequence[Relation]) -> Definitions:
        """Make what a COPY needs of the missing tables, in the caller's transaction. Returns the definitions of all.

        Errors: those of both sides.
        """
        missing = missing_tables(connection, relations) if self._wanted else ()
        definitions = self._definitions(missing)
        make_tables(connection, definitions)
        return definitions

    def make_rest(self, connection: Connection, definitions: Definitions) -> tuple[str, ...]:
        """Make everything else behind the rows, but foreign keys, whose statements it returns. Errors: those of both
        sides.
        """
        make_rest(connection, replace(definitions, references=()))
        with self._reading.errors("recopy"):
            there = self._reading.catalog()
            values = [(sequence, *sequence_value(there, sequence)) for sequence in definitions.sequences]
        set_sequences(connection, values)
        return tuple(addition.text for addition in possible(connection, definitions.references))

    @staticmethod
    @contextmanager
    def filling(definitions: Definitions) -> Iterator[None]:
        """Around the load: hints do not name tables that are gone when the transaction is rolled back."""
        try:
            yield
        except TargetError as error:
            names = {f"{made.schema}.{made.table}" for made in definitions.tables}
            if error.table in names and "ALTER TABLE" in (error.hint or ""):
                error.hint = _MADE_SO
            raise

    @staticmethod
    def tell(definitions: Definitions, keys: Sequence[str]) -> None:
        """Log what was left out. `keys`: the statements that make the foreign keys."""
        if definitions.defaults_left_out:
            _logger.warning("%s", definitions.defaults_left_out)
        if keys:
            _logger.warning(
                "Left out foreign keys, since the copy is ahead of other tables. Once a run is green, you may run: %s",
                "; ".join(keys),
            )

    def _definitions(self, missing: Sequence[Relation]) -> Definitions:
        with self._reading.errors("recopy"):
            return read_definitions(self._reading.catalog(), missing)
