"""The messages of a unit's steps, in their order."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import pyarrow as pa

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import START_ELSEWHERE, PlanError
from airflow_parallel_apply.pipeline.log.commit_times import CommitTimes
from airflow_parallel_apply.pipeline.model.kept_texts import column_keeps_texts
from airflow_parallel_apply.pipeline.target.feed_rows import truncate_rows
from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress
from airflow_parallel_apply.pipeline.target.kafka.messages import Messages, has_other_keys
from airflow_parallel_apply.pipeline.target.kafka.staging import Message, Staging, messages_of
from airflow_parallel_apply.pipeline.target.redefinition import compare_definitions
from airflow_parallel_apply.pipeline.target.relations import Relations
from airflow_parallel_apply.pipeline.target.steps import Merge, Redefine, Remove, Replay, Statement, Step, Truncate


class StepMessages:
    """Makes the messages that are sent for steps. Not thread-safe."""

    def __init__(self, address: KafkaAddress, relations: Relations, staging: Staging) -> None:
        self._address = address
        self._relations = relations
        self._staging = staging
        self._messages = Messages(address, relations)

    def of(self, steps: Sequence[Step]) -> list[Iterator[Message]]:
        """One after the other. What is staged is merged, so that a unit goes out in the order of its changes. Errors:
        `StagingLost`; `PlanError` for a step that no topic can show.
        """
        found: list[Iterator[Message]] = []
        tables = [
            (self._address.topic(self._relations(table.relation_id).name), table)
            for step in steps
            if isinstance(step, Merge)
            for table in step.staged.tables
        ]
        alone = all(isinstance(step, Merge) for step in steps)
        if alone:
            return [self._staging.read(tables)] if tables else []
        for step in steps:
            match step:
                case Merge(staged):
                    mine = [pair for pair in tables if pair[1] in staged.tables]
                    found.append(self._staging.read(mine))
                case Replay(rows):
                    found.append(self._replayed(rows()))
                case Truncate():
                    found.append(self._truncated(step))
                case Redefine(ddl=DdlPolicy.SKIP):
                    continue
                case Redefine():
                    raise self._redefined(step)
                case Remove():
                    continue
                case Statement():
                    raise PlanError("a topic cannot run DDL", op="apply", hint=f"To go on, {step.skipping}.")
        return found

    def _redefined(self, step: Redefine) -> PlanError:
        older, newer = self._relations(step.older_id), self._relations(step.newer_id)
        what = f"the definition of {newer.name} changed at the source"
        later = (
            "have the new columns"
            if older.name == newer.name
            else f"are in the topic {self._address.topic(newer.name)}"
        )
        hint = f"Tell its consumers that later messages {later}, and {step.skipping}."
        retyped = [
            (one.old, one.new)
            for one in compare_definitions(older, newer).changes
            if one.old is not None and one.new is not None and not column_keeps_texts(one.old, one.new)
        ]
        if older.name == newer.name and has_other_keys(self._address, older, newer):
            what += ", and its later messages have other keys than those before: rows that are not written again would "
            what += "be there twice"
            hint = f"{START_ELSEWHERE} Only where consumers tell such rows apart: {hint}"
        elif retyped:
            listed = ", ".join(new.name for _, new in retyped)
            what += f", and older rows may have another text in {listed} since, which no message says"
            hint = f"Update these rows at the source, as far as they are still there, so that they are sent. {hint}"
        return PlanError(what, op="apply", table=newer.name, hint=hint)

    def _replayed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Message]:
        for batch in batches:
            seqno = batch.column("seqno")
            times = self._relations.commit_times(seqno[0].as_py() - 1, seqno[-1].as_py())
            yield from self._in_order(batch, times)

    def _truncated(self, step: Truncate) -> Iterator[Message]:
        times = self._relations.commit_times(step.seqno - 1, step.seqno)
        yield from self._in_order(truncate_rows(step), times)

    def _in_order(self, batch: pa.RecordBatch, times: CommitTimes) -> Iterator[Message]:
        parts = [
            messages_of(self._address.topic(relation.name), [part])
            for relation, part in self._messages.by_relation(batch, times)
        ]
        return heapq.merge(*parts, key=lambda message: message.order)
