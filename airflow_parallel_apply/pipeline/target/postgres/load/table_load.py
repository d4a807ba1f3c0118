"""One relation's part of what an attempt loads: its net changes become COPY text, and go into a staging table, or
insertions straight into their own (see `straight_load`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

import numpy as np
import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.apply.net_changes import INSERT, NetChanges, Numbers
from airflow_parallel_apply.pipeline.apply.relation_load import RelationLoad
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.diagnosis import copy_line, translate
from airflow_parallel_apply.pipeline.target.postgres.diagnosis.enum_labels import say_label
from airflow_parallel_apply.pipeline.target.postgres.load.applying import Applying
from airflow_parallel_apply.pipeline.target.postgres.load.straight_load import StraightLoad, refused_rows
from airflow_parallel_apply.pipeline.target.postgres.naming import SCHEMA
from airflow_parallel_apply.pipeline.target.postgres.redefine.applied_tables import describe_applied
from airflow_parallel_apply.pipeline.target.postgres.session import Connection
from airflow_parallel_apply.pipeline.target.postgres.staging.exact import inexact_columns, require_exact, say_retyping
from airflow_parallel_apply.pipeline.target.postgres.staging.narrow import refused_by_width
from airflow_parallel_apply.pipeline.target.postgres.staging.staging import copy_into_staging, create_staging
from airflow_parallel_apply.pipeline.target.postgres.staging.staging_text import staging_text

_FLUSH_BYTES: Final = 4 * 2**20
"""Bytes of one relation's COPY text that are sent at once."""


class TableLoad(RelationLoad):
    """See `RelationLoad`: a staging table. `applying`: see `takes` there; None: everything is staged."""

    def __init__(
        self, connection: Connection, relation: Relation, pipeline: str, staging: str, applying: Applying | None
    ) -> None:
        super().__init__(relation, staging)
        self._connection = connection
        self._pipeline = pipeline
        self._target: TargetTable | None = None
        self._inexact: tuple[int, ...] = ()
        self._texts: list[memoryview] = []
        self._seqnos: list[Numbers] = []
        self._texts_unsent = False
        self._applying = applying
        self._straight: StraightLoad | None = None
        """Takes the insertions, where they go straight into the table."""
        self._asked = False
        self._is_created = False
        self._staged_bytes = 0

    @property
    def buffered_bytes(self) -> int:
        return self._staged_bytes + (self._straight.buffered_bytes if self._straight is not None else 0)

    def finish(self) -> None:
        super().finish()
        self._stop_inserting()
        if self._target is not None and self._is_created and self._inexact:
            staging = sql.Identifier(SCHEMA, self.name)
            require_exact(self._connection, staging, self._target, self._inexact)

    def flush(self) -> None:
        """Send what is buffered, by one COPY for what is staged, and one for what goes straight into the table."""
        if self._straight is not None:
            self._straight.flush()
        if not self._texts or self._target is None:
            return
        command = copy_into_staging(self.name, self._target, self._inexact, with_unsent=self._texts_unsent)
        try:
            with self._copy(command) as copy:
                for text in self._texts:
                    copy.write(text)
        except psycopg.Error as error:
            raise self._located(error) from error
        self._texts.clear()
        self._seqnos.clear()
        self._staged_bytes = 0

    def _keep(self, changes: NetChanges) -> None:
        if self._applying is not None and not self._asked and (changes.operations == INSERT).any():
            self._begin_inserting(self._applying)
        if self._target is None:
            (self._target,) = describe_applied(self._connection, [self._relation], pipeline=self._pipeline)
        left = self._without_insertions(changes)
        if left is not None:
            self._stage(left)
        if self.buffered_bytes >= _FLUSH_BYTES:
            self.flush()

    def _without_insertions(self, changes: NetChanges) -> NetChanges | None:
        """Let insertions go straight into the table, where they may; return what is to be staged."""
        is_insertion = changes.operations == INSERT
        is_mixed = not is_insertion.all()
        if self._straight is not None and (is_mixed or self._is_created) and not self._straight.goes_beside_others:
            self.flush()
            self._stop_inserting()
        if self._straight is None:
            return changes
        if not is_mixed:
            self._straight.add(changes)
            return None
        if not is_insertion.any():
            return changes
        self._straight.add(changes.where(is_insertion))
        return changes.where(~is_insertion)

    def _begin_inserting(self, applying: Applying) -> None:
        """Find out, once, whether insertions may go straight into the table, which is as it was found until they are
        in. Errors: `DirectRefused` where others keep it for long; psycopg's own where the connection is lost.
        """
        self._asked = True
        with refused_rows(self._connection, self._relation.name):
            self._target = applying.hold(self._connection, self._relation)
        if applying.takes(self._connection, self._target):
            self._straight = StraightLoad(self._connection, self._target)

    def _stage(self, changes: NetChanges) -> None:
        if not self._is_created:
            self._create()
        if changes.unsent is not None and not self._texts_unsent:
            # From here on every line has one field more.
            self.flush()
            self._texts_unsent = True
        text = staging_text(changes, self._inexact, with_unsent=self._texts_unsent)
        self._texts.append(text)
        self._seqnos.append(changes.seqnos)
        self._staged_bytes += len(text)
        self._count(changes)

    def _create(self) -> None:
        if self._target is not None:
            self._inexact = inexact_columns(self._target)
            self._connection.execute(create_staging(self.name, self._target, self._inexact))
            self._is_created = True

    def _stop_inserting(self) -> None:
        """All that comes from here on is staged."""
        if self._straight is not None and self._applying is not None:
            loaded = self._straight.loaded()
            if loaded is not None:
                self._applying.loaded(loaded)
            self._straight = None

    def _copy(self, command: object) -> AbstractContextManager[psycopg.Copy]:
        return self._connection.cursor().copy(command)  # type: ignore[arg-type]

    def _located(self, error: psycopg.Error) -> Exception:
        refusal = refused_by_width(error, self._target) if self._target is not None else None
        found = refusal or translate(error, op="stage", table=self._relation.name)
        if refusal is None and self._target is not None:
            say_retyping(found, error, self._target)
            say_label(found, error, self._relation)
        line = copy_line(error)
        if line is not None and self._seqnos:
            seqnos = np.concatenate(self._seqnos)
            if line <= len(seqnos):
                found.seqno = int(seqnos[line - 1])
        return found
