"""A Kafka cluster as a target: `KafkaTarget`. Who may move its positions, `ownership` decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.errors import START_ELSEWHERE, ConfigurationError, OwnershipLost, TargetError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import Unit
from airflow_parallel_apply.pipeline.model.finding import Finding
from airflow_parallel_apply.pipeline.model.position import Position
from airflow_parallel_apply.pipeline.model.removal import Removal
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.expectation import Expectation
from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress
from airflow_parallel_apply.pipeline.target.kafka.check import findings, had_messages
from airflow_parallel_apply.pipeline.target.kafka.client import kafka_errors
from airflow_parallel_apply.pipeline.target.kafka.ownership import Claim, Ownership, generation_lost
from airflow_parallel_apply.pipeline.target.kafka.positions import PARTITIONS, Head, Positions
from airflow_parallel_apply.pipeline.target.kafka.sending import Sender, transaction
from airflow_parallel_apply.pipeline.target.kafka.staging import Staging
from airflow_parallel_apply.pipeline.target.kafka.steps import StepMessages
from airflow_parallel_apply.pipeline.target.kafka.topics import Topics
from airflow_parallel_apply.pipeline.target.protocol import Pending, Recopied, TargetIdentity
from airflow_parallel_apply.pipeline.target.relations import Relations
from airflow_parallel_apply.pipeline.target.steps import Capability, Merge, Step


class KafkaTarget:
    """Implements `Target`."""

    def __init__(
        self,
        address: KafkaAddress,
        pipeline: str,
        *,
        relations: Relations,
        ledger: Callable[[], str] | None = None,
    ) -> None:
        self._address = address
        self._pipeline = pipeline
        self._relations = relations
        self._topics = Topics(address)
        self._positions = Positions(address, pipeline)
        self._ownership = Ownership(address, pipeline, self._positions, ledger)
        self._staging = Staging(address, pipeline)
        self._steps = StepMessages(address, relations, self._staging)
        self._claim: Claim | None = None

    @property
    def capabilities(self) -> frozenset[Capability]:
        # A compacted topic takes no message without a key.
        return frozenset({Capability.REPLAY} if self._address.tombstones else {Capability.REPLAY, Capability.TRUNCATE})

    # --- set-up ---

    def is_installed(self) -> bool:
        with self._errors("prepare"):
            return self._positions.topic in self._topics.counts()

    def migrate(self) -> tuple[str, ...]:
        if self.is_installed():
            return ()
        with self._errors("prepare"):
            self._topics.ensure(self._positions.topic, partitions=PARTITIONS, is_compacted=True)
        return (f"topic {self._positions.topic}",)

    def identity(self) -> TargetIdentity:
        with self._errors("identify"):
            return TargetIdentity(server=self._topics.cluster(), database=self._address.prefix)

    def drop(self, *, force: bool) -> Removal:
        """The tables' topics stay: they are their consumers'."""
        with self._errors("drop"):
            if force:
                self._ownership.fence_all()
            self.leave()
            self._positions.close()
            is_gone = self._topics.delete(self._positions.topic)
        self._staging.drop_claims(None)
        self._staging.drop_groups()
        if not is_gone:
            return Removal()
        return Removal(
            done=(f"deleted topic {self._positions.topic}; the tables' topics {self._address.prefix}.… stay",)
        )

    def findings(self, expected: Expectation) -> tuple[Finding, ...]:
        with self._errors("check"):
            return tuple(findings(self._address, self._pipeline, expected, self._topics))

    def branch_findings(self, branches: int) -> tuple[Finding, ...]:  # noqa: ARG002  # it prepares none
        return ()

    def colocation(self, tables: TablePatterns) -> tuple[tuple[str, ...], ...]:  # noqa: ARG002  # topics have no references
        return ()

    def log_id(self) -> str:
        head = self._head()
        return "" if head is None else head.log_id

    def recopied(self) -> tuple[Recopied, ...]:
        return ()

    # --- positions ---

    def positions(self, *, durable: bool = False) -> tuple[Position, ...]:  # noqa: ARG002  # all replicas have what is committed
        with self._errors("read positions"):
            head = self._positions.head()
            return () if head is None else tuple(self._positions.read(range(head.channels)).values())

    def pending(self) -> Pending:
        return Pending(branches=0, decided=None)

    def held_up(self) -> tuple[Finding, ...]:
        return ()

    def generation(self) -> int:
        head = self._head()
        return 0 if head is None else head.generation

    def own(self, generation: int) -> None:
        self.leave()
        if self._ownership.own(generation):
            self._staging.drop_claims(None)
            self._staging.drop_groups()

    def routing_digest(self) -> str:
        head = self._head()
        return "" if head is None else head.routing_digest

    def lay_out(self, *, log_id: str, routing: Routing, generation: int) -> int:
        self.leave()
        with self._errors("route"):
            count = self._topics.ensure(self._positions.topic, partitions=PARTITIONS, is_compacted=True)
        if count <= routing.channels:
            raise ConfigurationError(
                f"topic {self._positions.topic} has {count} partitions, and {routing.channels} channels need "
                f"{1 + routing.channels}",
                pipeline=self._pipeline,
                hint=f"Make it by hand: {PARTITIONS} partitions, cleanup.policy=compact.",
            )
        if generation > 0:
            self._require_known()
        return self._ownership.lay_out(log_id=log_id, routing=routing, generation=generation)

    def take(
        self,
        channel: int | None,
        *,
        generation: int,
        token: str,
        routing_digest: str | None = None,
        group: int | None = None,
    ) -> Position:
        with self._errors("take", channel=channel):
            self.leave()
            taken = self._ownership.hold(channel, generation, token, routing_digest)
            if not taken.positions:
                raise ConfigurationError("the target has no position for the channel", hint="Clear the task open.")
            taken.positions = {
                number: replace(at, generation=generation, claim=token) for number, at in taken.positions.items()
            }
            with transaction(taken.producer):
                self._positions.write(taken.producer, taken.positions.values())
            self._claim = taken
        self._staging.drop_claims(channel, but_token=token)
        if channel is None:
            self._staging.drop_groups(below=group)
        return min(taken.positions.values(), key=lambda at: at.seqno)

    def take_part(self, unit: Unit) -> bool:
        if self.generation() != unit.generation:
            raise generation_lost(unit.generation)
        self.leave()
        self._staging.drop_part(unit)
        return False

    def leave(self) -> None:
        self._claim = None

    def note_tables(self, unbegun: Sequence[Relation] | None = None) -> None:
        """No-op: it knows them by their names."""

    # --- apply ---

    def commit(self, unit: Unit, steps: Sequence[Step]) -> None:
        with self._errors("commit", channel=unit.channel, transaction_ms=self._address.transaction_ms):
            claim = self._claim_of(unit)
            if claim is None:
                return
            messages = self._steps.of(steps)
            moved = {number: replace(claim.positions[number], seqno=unit.last_seqno) for number in unit.moved}
            sender = Sender(self._address, self._topics, channels=unit.channels)
            try:
                with transaction(claim.producer):
                    for found in messages:
                        sender.send(claim.producer, found)
                    self._positions.write(claim.producer, moved.values())
            except BaseException:
                # What became of it, the next take finds out.
                self.leave()
                self._topics.forget()
                raise
            claim.positions |= moved
        self._staging.remove(table for step in steps if isinstance(step, Merge) for table in step.staged.tables)

    def discard(self, token: str) -> None:
        self._staging.drop_token(token)

    def cancel(self) -> None:
        """Nothing here waits for others."""

    def close(self) -> None:
        self.leave()
        self._positions.close()

    def _require_known(self) -> None:
        """Require positions of a pipeline that had an owner, if it has sent anything. Errors: `TargetError`."""
        with self._errors("route"):
            if self._positions.head() is not None:
                return
            counts = self._topics.counts()
            topics = [self._address.topic(f"{schema}.{table}") for schema, table in self._relations.all_names()]
            sent = [name for name in topics if name in counts and had_messages(self._address, name, counts[name])]
        if sent:
            raise TargetError(
                f"the positions in topic {self._positions.topic} are gone, and {sent[0]} had messages: what was "
                "sent is not known any more",
                op="route",
                pipeline=self._pipeline,
                hint=f"Nothing is sent twice. {START_ELSEWHERE}",
            )

    def _read(self, unit: Unit) -> Mapping[int, Position]:
        """The positions that a unit moves: as this session's claim left them, where it holds them."""
        claim = self._claim
        if claim is not None and claim.covers(unit):
            return {number: claim.positions[number] for number in unit.moved if number in claim.positions}
        return self._positions.read(unit.moved)

    def _is_done(self, unit: Unit, held: Mapping[int, Position]) -> bool:
        """Errors: `OwnershipLost` unless the unit may be committed, or is."""
        if len(held) == len(unit.moved) and all(at.seqno == unit.last_seqno for at in held.values()):
            return True
        for number in unit.moved:
            at = held.get(number)
            expected = (unit.after(number), unit.generation, unit.token)
            if at is None or (at.seqno, at.generation, at.claim) != expected:
                raise OwnershipLost(
                    f"the position is no longer this claim's to move from {unit.after(number)} to {unit.last_seqno}",
                    channel=number,
                    seqno=unit.last_seqno,
                )
        return False

    def _claim_of(self, unit: Unit) -> Claim | None:
        """The claim that may commit a unit: this session's, or its own taken up again after a failure. None where the
        unit is committed.
        """
        if self._is_done(unit, self._read(unit)):
            return None
        if self._claim is None or not self._claim.covers(unit):
            channel = unit.moved[0] if len(unit.moved) == 1 and unit.channel is not None else None
            self._claim = self._ownership.hold(channel, unit.generation, unit.token, None)
            # The broker may have been about to commit it, and has by now.
            if self._is_done(unit, self._read(unit)):
                return None
        return self._claim

    def _head(self) -> Head | None:
        with self._errors("read positions"):
            return self._ownership.known(self._positions.head())

    def _errors(
        self, op: str, *, channel: int | None = None, transaction_ms: int | None = None
    ) -> AbstractContextManager[None]:
        return kafka_errors(op, pipeline=self._pipeline, channel=channel, transaction_ms=transaction_ms)
