"""The store `log`: stateless, a channel's branch is a scan of the log by seqno and what its partitioner says.

Nothing is written twice, channels may be far apart at no cost, and a restart has nothing to restore. What it costs is
that k channels read the same files; with the partitioner `key` their bucket ranges are clustered there, so
that together they read about one scan; with any other each of them reads all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from airflow_parallel_apply.pipeline.log.footers import widest_values
from airflow_parallel_apply.pipeline.log.protocol import KEY_ORDER_VERSION, LogReader, LogState, Segment
from airflow_parallel_apply.pipeline.model.change import BUCKET_COUNT, Relation
from airflow_parallel_apply.pipeline.model.epoch import Merging, Serial, Unit
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.partition.channel import bucket_range
from airflow_parallel_apply.pipeline.partition.open import open_partitioner
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.store.even_ranges import even_ranges
from airflow_parallel_apply.pipeline.store.protocol import ALL_ROWS, FileBranch, StoreBranch, StreamBranch
from airflow_parallel_apply.pipeline.stream.ticket import Ticket


class LogStore:
    """See `Store`. Thread-safe where the reader is."""

    def __init__(self, log: LogReader) -> None:
        self._log = log

    def branch(self, unit: Unit, *, parts: int = 1) -> StoreBranch:
        """The files' checksums are compared once a process, before their first use; of a log that a router serves, by
        the router. Asked for parts, it reads the buckets of all rows that come into question.
        """
        state = self._log.state()
        segments = _segments_of(unit, state)
        ranges = self._ranges(unit, parts, segments) if parts > 1 else ()
        committed = self._committed(unit, state.relations) if isinstance(unit.kind, Merging) else None
        unordered = _unordered(segments, state.relations)
        if self._log.router is not None:
            return StreamBranch(
                address=self._log.router.url(with_token=True, with_path=False),
                tickets=self._tickets(unit, self._log.router.path, ranges),
                after_seqno=unit.after_seqno,
                last_seqno=unit.last_seqno,
                condition=None if unit.channel is None else ALL_ROWS,
                committed=committed,
                unordered=unordered,
            )
        self._log.verify(segments)
        files = self._log.row_files(unit.after_seqno, unit.last_seqno)
        return FileBranch(
            files=files,
            after_seqno=unit.after_seqno,
            last_seqno=unit.last_seqno,
            condition=None if unit.channel is None else self._condition(unit, unit.channel, state.relations),
            committed=committed,
            unordered=unordered,
            ranges=ranges,
            widest_bytes=widest_values(files),
        )

    def parts(self, unit: Unit, parts: int) -> int:
        """Into how many parts a channel's unit would be divided where `parts` are asked for. Errors: `LogError`."""
        return 1 if parts == 1 else max(1, _channel_parts(unit, parts, _segments_of(unit, self._log.state())))

    def doubt(self, unit: Unit) -> None:
        """Nothing: there is no other place for its rows."""

    def close(self) -> None:
        """Holds nothing open."""

    def _tickets(self, unit: Unit, name: str, ranges: Sequence[tuple[int, int]]) -> tuple[bytes, ...]:
        """The router leaves the rows of other channels out; what else is not the unit's the job does."""
        ticket = Ticket(
            log=name,
            log_id=self._log.identity.log_id,
            after_seqno=unit.after_seqno,
            last_seqno=unit.last_seqno,
            routing=None if unit.channel is None else unit.routing or Routing(channels=unit.channels),
            channel=unit.channel,
            after_fragno=_fragno_before(unit),
        )
        return tuple(replace(ticket, buckets=buckets).to_bytes() for buckets in ranges or (None,))

    def _ranges(self, unit: Unit, parts: int, segments: Sequence[Segment]) -> tuple[tuple[int, int], ...]:
        """A channel's rows are divided where they are more than those of others, which lie in the same files."""
        first, last = 0, BUCKET_COUNT - 1
        if unit.channel is not None:
            parts = _channel_parts(unit, parts, segments)
            if unit.routing is None or unit.routing == Routing(channels=unit.channels):
                first, last = bucket_range(unit.channel, unit.channels)
        if parts < 2:
            return ()
        found = np.zeros(BUCKET_COUNT, dtype=np.int64)
        for rows in self._log.rows(unit.after_seqno, unit.last_seqno, columns=["bucket"]):
            found += np.bincount(rows.column(0).to_numpy(), minlength=BUCKET_COUNT)
        found[:first] = found[last + 1 :] = 0
        return even_ranges(found, parts)

    def _condition(self, unit: Unit, channel: int, relations: Sequence[Relation]) -> str:
        routing = unit.routing or Routing(channels=unit.channels)
        return open_partitioner(routing).condition(channel, relations)

    def _committed(self, unit: Unit, relations: Sequence[Relation]) -> str:
        """One case for each position that channels have; a row of no channel is left out, and missed by the count."""
        channels_at: dict[int, list[int]] = {}
        for channel in range(unit.channels):
            channels_at.setdefault(unit.after(channel), []).append(channel)
        cases = (
            f"WHEN {' OR '.join(f'({self._condition(unit, channel, relations)})' for channel in channels)} THEN {seqno}"
            for seqno, channels in sorted(channels_at.items())
        )
        return f"CASE {' '.join(cases)} ELSE {unit.last_seqno} END"


def _fragno_before(unit: Unit) -> int | None:
    """The fragno that the part before a unit ended with, where the unit begins inside a transaction."""
    if isinstance(unit.kind, Serial) and unit.kind.first_fragno and unit.last_seqno == unit.after_seqno + 1:
        return unit.kind.first_fragno - 1
    return None


def _segments_of(unit: Unit, state: LogState) -> list[Segment]:
    return [
        segment
        for segment in state.segments
        if segment.first_seqno <= unit.last_seqno and segment.last_seqno > unit.after_seqno
    ]


def _channel_parts(unit: Unit, parts: int, segments: Sequence[Segment]) -> int:
    """Into how many parts a channel's rows are divided: one, unless they are more than those of others."""
    share = sum(_rows_between(segment, unit) for segment in segments) / unit.channels
    return min(parts, round(unit.row_count / share)) if share else 1


def _rows_between(segment: Segment, unit: Unit) -> float:
    """An estimate of a segment's rows that a unit's seqnos have, in all channels."""
    first, last = max(segment.first_seqno, unit.after_seqno + 1), min(segment.last_seqno, unit.last_seqno)
    return segment.row_count * (last - first + 1) / (segment.last_seqno - segment.first_seqno + 1)


def _unordered(segments: Sequence[Segment], relations: Sequence[Relation]) -> tuple[int, ...]:
    """Relations whose rows an older rule ordered: their key is one column that may be a time, or a domain over one."""
    if all(segment.order_version == KEY_ORDER_VERSION for segment in segments):
        return ()
    return tuple(relation.relation_id for relation in relations if _may_be_time(relation))


def _may_be_time(relation: Relation) -> bool:
    # Logs of that time do not say what lies below a domain.
    kinds = relation.key_kinds
    return len(kinds) == 1 and kinds[0] in (KeyKind.TIME, KeyKind.NOT_CANONICAL)
