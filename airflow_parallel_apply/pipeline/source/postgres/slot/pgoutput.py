"""Decoding `pgoutput` by column: batches of messages in, batches of log rows and transactions out.

State carries over from batch to batch (known relations, the open transaction, the next seqno and fragno), so that a
transaction of any size streams through in batches of the reader's choice. One decoder serves one read of the slot.

A transaction without a followed change gets no seqno. Inside one, fragnos have no gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_parallel_apply.pipeline.errors import SourceError
from airflow_parallel_apply.pipeline.log.schema import TRANSACTIONS
from airflow_parallel_apply.pipeline.log.segment import UNLINKED
from airflow_parallel_apply.pipeline.model.change import Mark, Operation
from airflow_parallel_apply.pipeline.source.postgres.proof.renaming import Renamed
from airflow_parallel_apply.pipeline.source.postgres.slot.passing import Passing
from airflow_parallel_apply.pipeline.source.postgres.slot.transactions import (
    XID_AT,
    OpenTransaction,
    begun,
    end_lsn,
    ended_transactions,
)
from airflow_parallel_apply.pipeline.source.postgres.wire.cells import Wire
from airflow_parallel_apply.pipeline.source.postgres.wire.described_tables import DescribedTables, LookUp, undescribed
from airflow_parallel_apply.pipeline.source.postgres.wire.descriptions import Together, described_for
from airflow_parallel_apply.pipeline.source.postgres.wire.messages import (
    WireMessage,
    WireRelation,
    parse_message,
    parse_truncate,
)
from airflow_parallel_apply.pipeline.source.postgres.wire.seldom import Seldom, Statement
from airflow_parallel_apply.pipeline.source.postgres.wire.tuples import FollowedTable, Tuples, changes_of
from airflow_parallel_apply.pipeline.source.rows import NO_RELATION, RowBuilder

Numbers = npt.NDArray[np.int64]

_BEGIN, _COMMIT, _INSERT, _UPDATE, _DELETE = (ord(letter) for letter in "BCIUD")
_FREQUENT: Final = np.isin(np.arange(256), [_BEGIN, _COMMIT, _INSERT, _UPDATE, _DELETE])
_CHANGES: Final = np.isin(np.arange(256), [_INSERT, _UPDATE, _DELETE])
_RELATION, _TRUNCATE = ord("R"), ord("T")
_NEW: Final = ord("N")
_TUPLE_AT: Final = 6
"""Kind, oid and marker before a change's first tuple."""


class Decoder:
    """Decodes one read of a slot, from its first message. Not thread-safe.

    `table` turns descriptions into followed tables. `ddl` gives the text of a message that counts as DDL, and what else
    the log keeps of it, by its transaction's id and commit LSN; None for any other. `is_part` tells whether a table
    that is described for a change of another one is a partition of that one, in a transaction that commits at an LSN.
    `passing` takes messages out. `latest_time`: no transaction committed later.
    Errors: `SourceError` for bytes that are not `pgoutput` as we know it.
    """

    def __init__(
        self,
        *,
        next_seqno: int,
        table: LookUp,
        ddl: Callable[[int, int, WireMessage], tuple[bytes, ...] | None],
        renamed: Callable[[int, WireMessage], Renamed],
        is_part: Callable[[WireRelation, int, int], bool],
        passing: Passing | None = None,
        latest_time: datetime | None = None,
    ) -> None:
        self._described = DescribedTables(table)
        self._ddl = ddl
        self._renamed = renamed
        self._is_part = is_part
        self._passing = passing
        self._latest_time = latest_time
        self._together = Together()
        self._next_seqno = next_seqno
        self._open: OpenTransaction | None = None
        self._is_redefined = False
        self.safe_lsn = 0
        """Every commit whose record begins below it has been decoded: what a slot that stands there does not send."""
        self.message_count = 0
        self.byte_count = 0
        """The total size of the messages."""
        self.row_count = 0
        self.transaction_count = 0

    def keep_description(self, message: bytes) -> None:
        """Keep a description that the server sends only once, of a transaction that the log has. A table is looked up
        only when a change needs it: it may be gone by now.
        """
        relation = self._described.keep(message)
        if relation is not None and self._passing is not None:
            self._passing.name(relation.oid, relation.schema, relation.table)

    @property
    def is_between_transactions(self) -> bool:
        """True if the last message ended a transaction, as the last one of a read does."""
        return self._open is None

    def decode(self, messages: pa.BinaryArray) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """The rows of a batch, and the transactions that end in it. Its messages follow those of the batch before."""
        self.message_count += len(messages)
        self.byte_count += messages.nbytes
        if self._passing is not None:
            messages = self._passing.kept(messages)
        messages = self._together.whole(messages)
        if not len(messages):
            return pa.RecordBatch.from_pylist([], UNLINKED), pa.RecordBatch.from_pylist([], TRANSACTIONS)
        wire = Wire(messages)
        kinds = wire.data[wire.starts]
        redefined = self._look_up_kept(wire, kinds)
        before = self._described.now
        seldom = self._read_seldom(wire, kinds)
        seldom.redefined[:0] = redefined
        cells, changes = changes_of(wire, list(self._tuples(wire, kinds, before, seldom)))
        builder = RowBuilder(cells, len(wire), changes)
        for statement in seldom.statements:
            builder.add_statement(statement.message, statement.operation, statement.relation_ids, statement.texts)
        transaction = np.cumsum(kinds == _BEGIN)
        counts = np.bincount(transaction, weights=builder.rows_of_message, minlength=int(transaction[-1]) + 1)
        return self._number(wire, kinds, transaction, counts.astype(np.int64), builder, seldom)

    def _look_up_kept(self, wire: Wire, kinds: npt.NDArray[np.uint8]) -> list[int]:
        """The tables of kept descriptions that changes of this batch need; says whether the log had another definition,
        as the message that it is to be marked at.
        """
        if not self._described.kept:
            return []
        first_use: dict[int, int] = {}
        changes = np.flatnonzero(_CHANGES[kinds])
        oids, firsts = np.unique(wire.numbers(wire.starts[changes] + 1, ">u4"), return_index=True)
        first_use.update(zip(oids.tolist(), changes[firsts].tolist(), strict=True))
        for index in np.flatnonzero(kinds == _TRUNCATE).tolist():
            for oid in parse_truncate(wire.message(index)).oids:
                first_use[oid] = min(index, first_use.get(oid, index))
        for index in np.flatnonzero(kinds == _RELATION).tolist():
            oid = int(wire.numbers(wire.starts[index : index + 1] + 1, ">u4")[0])
            if index < first_use.get(oid, index + 1):
                # Described anew before its first change.
                self._described.forget_kept(oid)
        is_redefined = False
        for oid in first_use.keys() & set(self._described.kept):
            # It is still true there: another description would have come before.
            commit_lsn = self._transaction_of(wire, kinds, first_use[oid])[1]
            is_redefined |= self._described.look_up_kept(oid, commit_lsn)
        return [0] if is_redefined else []

    def _read_seldom(self, wire: Wire, kinds: npt.NDArray[np.uint8]) -> Seldom:
        found = Seldom()
        for index in np.flatnonzero(~_FREQUENT[kinds]).tolist():
            data = wire.message(index)
            match chr(kinds[index]):
                case "R":
                    relation = self._described.parse(data)
                    self._described.forget_kept(relation.oid)
                    changed = described_for(wire, kinds, index)
                    commit_lsn = self._transaction_of(wire, kinds, index)[1]
                    if changed and relation.oid not in changed and self._is_part(relation, changed[0], commit_lsn):
                        continue
                    is_redefined, others = self._described.look_up(relation, commit_lsn)
                    found.hold_from(index, others)
                    if is_redefined:
                        found.redefined.append(index)
                case "T":
                    truncate = parse_truncate(data)
                    found.statements.append(
                        Statement(
                            message=index,
                            operation=Operation.TRUNCATE,
                            relation_ids=tuple(map(self._described.id_of, truncate.oids)),
                            texts=tuple(word.encode() for word in truncate.words),
                        )
                    )
                case "M":
                    message = parse_message(data)
                    if not message.transactional:
                        # Its LSN is the end of its record, where the commit behind it may begin. What committed
                        # before it was sent before it, so a read of nothing else moves on.
                        self.safe_lsn = max(self.safe_lsn, message.lsn)
                    xid, commit_lsn = self._transaction_of(wire, kinds, index) if message.transactional else (0, 0)
                    kept = self._ddl(xid, commit_lsn, message)
                    renamed = self._renamed(xid, message)
                    if renamed.told:
                        found.hold_from(index, self._described.rename((*renamed.told, *renamed.others)))
                        told = (message.prefix.encode(), b"")
                        found.redefined.append(index)
                        found.statements.append(
                            Statement(
                                message=index,
                                operation=Operation.MESSAGE,
                                relation_ids=tuple(relation.relation_id for relation in renamed.told),
                                texts=told,
                            )
                        )
                    elif kept is not None:
                        texts = (message.prefix.encode(), *kept)
                        found.statements.append(
                            Statement(
                                message=index, operation=Operation.MESSAGE, relation_ids=(NO_RELATION,), texts=texts
                            )
                        )
                case "Y":
                    self._described.name_type(data)
                case "O":
                    continue
                case kind:
                    raise SourceError(f"pgoutput sent a message of unknown kind {kind!r}", op="capture")
        return found

    def _transaction_of(self, wire: Wire, kinds: npt.NDArray[np.uint8], index: int) -> tuple[int, int]:
        """Id and commit LSN of the transaction that a message stands in."""
        begins = np.flatnonzero(kinds[:index] == _BEGIN)
        if len(begins):
            return begun(wire, int(begins[-1]))
        return (self._open.xid, self._open.commit_lsn) if self._open is not None else (0, 0)

    def _tuples(
        self, wire: Wire, kinds: npt.NDArray[np.uint8], before: dict[int, FollowedTable], seldom: Seldom
    ) -> Iterator[Tuples]:
        """Changes of one table's version and one shape, together."""
        changes = np.flatnonzero(_CHANGES[kinds])
        if not len(changes):
            return
        oids = wire.numbers(wire.starts[changes] + 1, ">u4")
        markers = wire.data[wire.starts[changes] + _TUPLE_AT - 1].astype(np.int64)
        shapes = (oids << 16) | (kinds[changes].astype(np.int64) << 8) | markers
        order = np.argsort(shapes, kind="stable")
        sorted_shapes = shapes[order]
        cuts = [0, *(np.flatnonzero(np.diff(sorted_shapes)) + 1).tolist(), len(order)]
        for first, end in pairwise(cuts):
            shape = int(sorted_shapes[first])
            oid, kind, marker = shape >> 16, Operation(chr(shape >> 8 & 0xFF)), shape & 0xFF
            indexes = changes[order[first:end]]
            versions = [(-1, before.get(oid)), *seldom.versions.get(oid, ())]
            edges = [*np.searchsorted(indexes, [index for index, _ in versions]).tolist(), len(indexes)]
            for (_, table), (start, stop) in zip(versions, pairwise(edges), strict=True):
                if start < stop:
                    if table is None:
                        raise undescribed(oid)
                    yield Tuples(
                        table=table,
                        operation=kind,
                        old=None if marker == _NEW else chr(marker),
                        messages=indexes[start:stop],
                        cursor=wire.starts[indexes[start:stop]] + _TUPLE_AT,
                    )

    def _number(
        self,
        wire: Wire,
        kinds: npt.NDArray[np.uint8],
        transaction: Numbers,
        counts: Numbers,
        builder: RowBuilder,
        seldom: Seldom,
    ) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Give rows and transactions their numbers. Transaction 0 of a batch is the one left open by the last."""
        carried = self._open or OpenTransaction()
        if self._open is None and counts[0]:
            raise SourceError("pgoutput sent a change outside any transaction", op="capture")
        totals = counts.copy()
        totals[0] += carried.row_count
        has_rows = totals > 0
        seqnos = self._next_seqno + np.cumsum(has_rows) - has_rows
        row_transaction = np.repeat(transaction, builder.rows_of_message)
        first_row = np.cumsum(counts) - counts
        first_row[0] -= carried.row_count
        fragno = np.arange(len(row_transaction)) - first_row[row_transaction]
        rows, row_bytes, key_unsent = builder.build(seqnos[row_transaction], fragno)
        byte_counts = np.bincount(row_transaction, weights=row_bytes, minlength=len(counts)).astype(np.int64)
        byte_counts[0] += carried.byte_count
        begins = np.flatnonzero(kinds == _BEGIN)
        xids = np.concatenate([[carried.xid], wire.numbers(wire.starts[begins] + XID_AT, ">u4")])

        marks: dict[int, set[Mark]] = {0: set(carried.marks)} if carried.marks else {}
        for statement in seldom.statements:
            if statement.operation is Operation.MESSAGE and statement.relation_ids != (NO_RELATION,):
                continue
            mark = Mark.TRUNCATE if statement.operation is Operation.TRUNCATE else Mark.MESSAGE
            marks.setdefault(int(transaction[statement.message]), set()).add(mark)
        for row_transaction_index in np.unique(row_transaction[key_unsent]).tolist():
            marks.setdefault(row_transaction_index, set()).add(Mark.KEY_UNSENT)
        self._mark_redefined(seldom.redefined, builder.rows_of_message, transaction, marks)

        commits = np.flatnonzero(kinds == _COMMIT)
        if len(commits):
            self.safe_lsn = max(self.safe_lsn, int(end_lsn(wire, wire.starts[commits[-1:]])[0]))
        transactions = ended_transactions(
            wire,
            commits,
            transaction,
            seqnos=seqnos,
            xids=xids,
            totals=totals,
            byte_counts=byte_counts,
            marks=marks,
            latest_time=self._latest_time,
        )
        last = len(counts) - 1
        is_open = len(begins) + (self._open is not None) > len(commits)
        self._open = (
            OpenTransaction(
                xid=int(xids[last]),
                commit_lsn=int(wire.numbers(wire.starts[begins[-1:]] + 1, ">i8")[0])
                if len(begins)
                else carried.commit_lsn,
                row_count=int(totals[last]),
                byte_count=int(byte_counts[last]),
                marks=marks.get(last, set()),
            )
            if is_open
            else None
        )
        self._next_seqno += transactions.num_rows
        self.row_count += rows.num_rows
        self.transaction_count += transactions.num_rows
        return rows, transactions

    def _mark_redefined(
        self, redefined: list[int], rows_of_message: Numbers, transaction: Numbers, marks: dict[int, set[Mark]]
    ) -> None:
        """Mark the transaction of the first row at or behind a changed definition, be it in a later batch."""
        for index in [0, *redefined] if self._is_redefined else redefined:
            behind = np.flatnonzero(rows_of_message[index:])
            self._is_redefined = not len(behind)
            if len(behind):
                marks.setdefault(int(transaction[index + behind[0]]), set()).add(Mark.RELATION)
