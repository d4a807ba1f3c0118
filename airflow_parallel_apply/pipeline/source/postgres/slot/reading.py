"""One read of a slot, from what the log has to where it is asked to end: `SlotRead`.

Each read begins with the last transaction that the log has, see `resume`. A server decodes a whole peek before it sends
the first row, and decodes again what it decoded for the previous peek. So a read is large; readers of the log wait for
a step of it only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from airflow_parallel_apply.pipeline.config import PipelineConfig
from airflow_parallel_apply.pipeline.errors import SourceError
from airflow_parallel_apply.pipeline.log.protocol import LogState
from airflow_parallel_apply.pipeline.model.gone_rows import GoneRows
from airflow_parallel_apply.pipeline.model.sent_ddl import text_of_names
from airflow_parallel_apply.pipeline.source.postgres.catalog.described import describe, numbered
from airflow_parallel_apply.pipeline.source.postgres.catalog.history import knowing
from airflow_parallel_apply.pipeline.source.postgres.catalog.shape import shapes
from airflow_parallel_apply.pipeline.source.postgres.ddl.ddl_messages import DdlMessages
from airflow_parallel_apply.pipeline.source.postgres.ddl.removals import removal_of
from airflow_parallel_apply.pipeline.source.postgres.ddl.sent_sightings import SentSightings
from airflow_parallel_apply.pipeline.source.postgres.pending import Pending
from airflow_parallel_apply.pipeline.source.postgres.proof.proof import recopy_hint
from airflow_parallel_apply.pipeline.source.postgres.proof.registration import Registration
from airflow_parallel_apply.pipeline.source.postgres.proof.renaming import RENAMED_PREFIX, Renamed, renamed, renamed_by
from airflow_parallel_apply.pipeline.source.postgres.proof.untold_columns import untold_expressions
from airflow_parallel_apply.pipeline.source.postgres.proof.written_parts import WrittenParts
from airflow_parallel_apply.pipeline.source.postgres.session import Session
from airflow_parallel_apply.pipeline.source.postgres.slot.copy_marks import CopyMarks
from airflow_parallel_apply.pipeline.source.postgres.slot.passing import Passing
from airflow_parallel_apply.pipeline.source.postgres.slot.pgoutput import Decoder
from airflow_parallel_apply.pipeline.source.postgres.slot.resume import LastCommit, ResumedRead, commit_ends
from airflow_parallel_apply.pipeline.source.postgres.slot.slot import Slot
from airflow_parallel_apply.pipeline.source.postgres.slot.visibility import Visibility
from airflow_parallel_apply.pipeline.source.postgres.wire.described_tables import LookedUp
from airflow_parallel_apply.pipeline.source.postgres.wire.messages import WireMessage, WireRelation
from airflow_parallel_apply.pipeline.source.postgres.wire.tuples import FollowedTable
from airflow_parallel_apply.pipeline.source.protocol import Definitions, Look, Part, Reached

_READ_BYTES: Final = 384 * 2**20
"""About how many bytes of messages one read of several steps makes the server keep in its temporary files."""


class SlotRead:
    """`message_bytes`: of a message, on average, by the read before; None where nothing tells. Not thread-safe."""

    def __init__(
        self,
        session: Session,
        slot: Slot,
        config: PipelineConfig,
        log: LogState,
        look: Look,
        definitions: Definitions,
        *,
        publication: str,
        visibility: Visibility | None,
        message_bytes: float | None,
        batch_bytes: int,
    ) -> None:
        self._session = session
        self._slot = slot
        self._log = log
        self._definitions = definitions
        self._publication = publication
        self._visibility = visibility
        self._copies = CopyMarks(log, config)
        self._batch_bytes = batch_bytes
        self.message_bytes = message_bytes
        text = look.registration
        registration = Registration(server="", tables=()) if text is None else Registration.from_text(text)
        self._skipped = dict(registration.skipped)
        self._sent = SentSightings(definitions, self._names_now, self._skipped)
        pending = Pending(session.catalog(), slot.name, publication)
        self._untold = untold_expressions(pending, definitions.sightings(), log.captured_offset)
        self._messages = DdlMessages(session, self._sent.take)
        self._tables = {table.oid: table for table in registration.tables}
        self._written = WrittenParts(registration, config, is_there=self._is_there)
        self._passing = Passing(
            log.passed_over, None if text is None else registration, captured_offset=log.captured_offset
        )
        self._config = config
        self._answers: dict[int, tuple[tuple[object, ...], FollowedTable]] = {}
        """How each table was described last, and from what."""
        self._decoder = Decoder(
            next_seqno=log.last_seqno + 1,
            table=self._followed,
            ddl=self._ddl,
            renamed=self._renamed,
            is_part=self._written.is_part,
            latest_time=None if visibility is None else visibility.time,
            passing=self._passing,
        )

    def parts(self, through_lsn: int, *, max_changes: int, step_changes: int) -> Iterator[Part | Reached]:
        """See `Source.read`. Errors: the drivers', too."""
        slot = self._slot.checked(lambda: self._log.place)
        bounded = self._bounded_changes(max_changes, through_lsn - self._log.captured_offset)
        decoder, last = self._decoder, LastCommit()
        read = ResumedRead(
            partial(self._slot.peek, through_lsn, batch_bytes=self._batch_bytes),
            self._log.place.resume_at(slot.confirmed_lsn),
            place=self._session.place,
            keep=decoder.keep_description,
        )
        # The slot advances no further, nor does another reader get it, while it is being read.
        with closing(read.messages(slot.read_changes(min(max_changes, max(step_changes, bounded))))) as messages:
            for part, ends_step in _parts(messages, step_changes):
                if self._visibility is not None:
                    self._visibility.require(part)
                self._copies.see(part)
                rows, transactions = decoder.decode(part)
                last.feed(part)
                yield Part(rows=rows, transactions=transactions)
                if ends_step:
                    self._copies.require(decoder.safe_lsn)
                    yield Reached(offset=decoder.safe_lsn, resume=last.point)
        if not decoder.is_between_transactions:
            raise SourceError("the source's answer ended inside a transaction", op="capture")
        self.message_bytes = decoder.byte_count / decoder.message_count if decoder.message_count else None
        # Nothing is left below the bound after a read that was not full.
        reached = through_lsn if read.is_complete else decoder.safe_lsn
        self._copies.require(reached)
        yield Reached(offset=reached, resume=last.point, is_last=True)

    def _bounded_changes(self, max_changes: int, wal_bytes: int) -> int:
        """The number of changes that have about `_READ_BYTES`, by those of the last read; 0 where nothing tells."""
        if self.message_bytes is not None:
            return int(_READ_BYTES / self.message_bytes)
        return max_changes if wal_bytes <= _READ_BYTES else 0

    def _followed(self, wire: WireRelation, commit_lsn: int) -> LookedUp:
        table = self._described(wire, commit_lsn)
        connection = self._session.catalog()
        relation, others = renamed(connection, self._definitions, table.relation)
        relation_id, is_redefined = self._definitions.relation_id(relation)
        return LookedUp(table=numbered(table, relation_id), is_redefined=is_redefined, renamed=others)

    def _described(self, wire: WireRelation, commit_lsn: int) -> FollowedTable:
        """A partitioned table is described again before the first row of each of its partitions, and the more there
        are, the longer it takes to ask for it. What the read comes to was committed before it was asked first.
        """
        seen = knowing(self._sent.before(wire.oid, commit_lsn), self._skipped)
        known = self._definitions.latest_relation(wire.schema, wire.table, wire.oid)
        asked = (wire, seen, known)
        if wire.oid not in self._answers or self._answers[wire.oid][0] != asked:
            connection = self._session.catalog()
            shape = shapes(connection, [wire.oid]).get(wire.oid)
            is_untold = wire.oid in self._untold
            table = describe(connection, wire, shape, seen=seen, known=known, is_untold=is_untold)
            self._answers[wire.oid] = asked, table
        return self._answers[wire.oid][1]

    def _ddl(self, xid: int, commit_lsn: int, message: WireMessage) -> tuple[bytes, ...] | None:
        if (removal := self._messages.removal(xid, message)) is not None:
            return self._gone(commit_lsn, removal)
        text = self._messages.text(xid, commit_lsn, message)
        if text is None:
            return None
        self._sent.take_ddl(commit_lsn, text.decode())
        names = self._sent.untold_names(commit_lsn)
        return (text, text_of_names(names).encode()) if names else (text,)

    def _gone(self, commit_lsn: int, content: bytes) -> tuple[bytes] | None:
        """The rows that a followed table lost with a partition. Errors: `SourceError`."""
        told = removal_of(content)
        bounds = None if told is None else self._written.leaves(told, commit_lsn)
        if told is None or bounds is None or not self._passing.follows(told.root, commit_lsn):
            return None
        table = self._tables[told.root]
        relation = self._definitions.latest_relation(table.schema, table.table, told.root)
        if relation is None:
            # Nothing was ever written to it.
            return None
        rows = GoneRows(relation_id=relation.relation_id, condition=bounds.rows, keys=bounds.keys)
        if not rows.is_of(relation):
            raise SourceError(
                f"rows of {table.name} went with a partition, and the columns by which they are told apart have had "
                "other names since",
                op="capture",
                pipeline=self._config.pipeline,
                table=table.name,
                hint=recopy_hint([table.name], self._config),
            )
        return (rows.to_text().encode(),)

    def _is_there(self, oid: int) -> bool:
        return oid in shapes(self._session.catalog(), [oid])

    def _names_now(self, oid: int) -> Mapping[int, str]:
        shape = shapes(self._session.catalog(), [oid]).get(oid)
        return {} if shape is None else {number: column.name for number, column in shape.columns.items()}

    def _renamed(self, xid: int, message: WireMessage) -> Renamed:
        if message.prefix != RENAMED_PREFIX or not message.transactional:
            return Renamed()
        return renamed_by(self._session.catalog(), self._definitions, self._publication, xid, message.content)


def _parts(messages: Iterable[pa.BinaryArray], step_changes: int) -> Iterator[tuple[pa.BinaryArray, bool]]:
    """The same messages, cut behind the commits where steps of about `step_changes` messages end; whether one does."""
    waiting = 0
    for batch in messages:
        ends, at = commit_ends(batch), 0
        while at < len(batch):
            place = int(np.searchsorted(ends, max(at + 1, at + step_changes - waiting)))
            ends_step = place < len(ends)
            stop = int(ends[place]) if ends_step else len(batch)
            yield batch.slice(at, stop - at), ends_step
            waiting = 0 if ends_step else waiting + stop - at
            at = stop
