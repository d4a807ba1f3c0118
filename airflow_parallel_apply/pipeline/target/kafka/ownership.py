"""Ownership of positions: transactional ids, the head that every take reads, and how both change hands.

Law 3 here: a channel has a transactional id, all channels together have another one. A take fences both, which ends
what former holders send and aborts what they had not committed; the position goes with the messages, in one transaction
of the producer that holds the id. So the broker itself refuses a zombie. A new generation is written before all ids are
fenced: whoever fences an id later reads it, and goes no further.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from airflow_parallel_apply.pipeline.errors import (
    START_ELSEWHERE,
    ConfigurationError,
    OwnershipLost,
    PlanError,
    TargetError,
    Unavailable,
)
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO
from airflow_parallel_apply.pipeline.model.epoch import Unit
from airflow_parallel_apply.pipeline.model.position import Position, all_equal, low_watermark
from airflow_parallel_apply.pipeline.partition.routing import Routing
from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress
from airflow_parallel_apply.pipeline.target.kafka.client import fence, kafka_errors
from airflow_parallel_apply.pipeline.target.kafka.positions import Head, Positions
from airflow_parallel_apply.pipeline.target.kafka.sending import transaction

_TRIES: Final = 5


@dataclass(slots=True)
class Claim:
    """The claim that this session holds. `channel` None: all."""

    producer: Any
    channel: int | None
    token: str
    generation: int
    positions: dict[int, Position]

    def covers(self, unit: Unit) -> bool:
        """True if a unit's positions are this claim's to move."""
        held = (unit.token, unit.generation) == (self.token, self.generation)
        return held and (self.channel is None or list(unit.moved) == [self.channel])


class Ownership:
    """The ownership of one pipeline's positions. `ledger`: see `TargetConnector.open`. Not thread-safe."""

    def __init__(
        self, address: KafkaAddress, pipeline: str, positions: Positions, ledger: Callable[[], str] | None
    ) -> None:
        self._address = address
        self._pipeline = pipeline
        self._positions = positions
        self._ledger = ledger

    def known(self, head: Head | None) -> Head | None:
        """Errors: `ConfigurationError` where the positions' ledger, or the format of what was sent, is another one."""
        if head is not None and self._ledger is not None and head.ledger != self._ledger():
            raise ConfigurationError(
                f"the ledger of pipeline {self._pipeline} is in database {head.ledger}, not in {self._ledger()}",
                pipeline=self._pipeline,
                hint="Name its own: ledger_conn_id, --ledger.",
            )
        if head is not None and head.format not in ("", self._address.format):
            raise ConfigurationError(
                f"pipeline {self._pipeline} has sent messages of the format {head.format}, and the connection asks for "
                f"{self._address.format}: the topics would have messages of both",
                pipeline=self._pipeline,
                hint=f"Give the connection format={head.format} again. {START_ELSEWHERE}",
            )
        return head

    def own(self, generation: int) -> bool:
        """Write a new generation into all positions, and fence all ids; False where a later one owns them, or there are
        none.
        """
        for _ in range(_TRIES):
            with suppress(OwnershipLost), kafka_errors("own", pipeline=self._pipeline):
                all_ = fence(self._address, self._ids(0))[self._id(None)]
                head = self.known(self._positions.head())
                if head is None or head.generation > generation:
                    return False
                head = replace(head, generation=generation, format=str(self._address.format))
                with transaction(all_):
                    self._positions.write_head(all_, head)
                self._stamp(all_, head)
                return True
        raise Unavailable("other sessions take the positions over and over", op="own", pipeline=self._pipeline)

    def lay_out(self, *, log_id: str, routing: Routing, generation: int) -> int:
        """See `Target.lay_out`."""
        with kafka_errors("route", pipeline=self._pipeline):
            former = self.known(self._positions.head())
            channels = max(routing.channels, 0 if former is None else former.channels)
            producers = fence(self._address, self._ids(channels))
            former = self._positions.head()
            before = [] if former is None else list(self._positions.read(range(former.channels)).values())
            if former is not None and former.routing_digest == routing.digest:
                return low_watermark(before)
            if not all_equal(before):
                listed = ", ".join(f"{at.channel}: {at.seqno}" for at in before)
                raise PlanError(
                    f"the routing changed while the channels stand at {listed}",
                    hint="Run with the former parameters until all channels stop at the same seqno, then change them.",
                )
            seqno = low_watermark(before) if before else NO_SEQNO
            head = Head(
                log_id=log_id,
                routing_digest=routing.digest,
                channels=routing.channels,
                generation=max(generation, 0 if former is None else former.generation),
                ledger="" if self._ledger is None else self._ledger(),
                format=str(self._address.format),
            )
            all_ = producers[self._id(None)]
            with transaction(all_):
                self._positions.write_head(all_, head)
                self._positions.write(
                    all_,
                    (
                        Position(channel=channel, seqno=seqno, generation=head.generation, claim=None)
                        for channel in range(routing.channels)
                    ),
                )
            return seqno

    def hold(self, channel: int | None, generation: int, token: str, digest: str | None) -> Claim:
        """End all who could move the channel, and hold it. Errors: `OwnershipLost`."""
        head = self._require(generation, digest)
        ids = self._ids(head.channels) if channel is None else (self._id(channel), self._id(None))
        producers = fence(self._address, ids)
        head = self._require(generation, digest)
        numbers = range(head.channels) if channel is None else [channel]
        return Claim(
            producer=producers[self._id(channel)],
            channel=channel,
            token=token,
            generation=generation,
            positions=self._positions.read(numbers),
        )

    def _require(self, generation: int, digest: str | None) -> Head:
        head = self._positions.head()
        if head is None or head.generation != generation:
            raise generation_lost(generation)
        if digest is not None and head.routing_digest != digest:
            raise OwnershipLost("the pipeline was routed anew since this lane began", hint="Clear the task open.")
        return head

    def _stamp(self, all_: Any, head: Head) -> None:
        """Fence every channel, and write the head's generation into all positions."""
        fence(self._address, [self._id(channel) for channel in range(head.channels)])
        found = self._positions.read(range(head.channels)).values()
        with transaction(all_):
            self._positions.write(all_, [replace(at, generation=head.generation) for at in found])

    def fence_all(self) -> None:
        """End all holders, as far as they are known."""
        head = None
        with suppress(TargetError):
            head = self._positions.head()
        fence(self._address, self._ids(0 if head is None else head.channels))

    def _id(self, channel: int | None) -> str:
        return self._address.transactional_id(self._pipeline, channel)

    def _ids(self, channels: int) -> list[str]:
        return [self._id(None), *(self._id(channel) for channel in range(channels))]


def generation_lost(generation: int) -> OwnershipLost:
    """The error of whoever acts under a generation that is over."""
    return OwnershipLost(
        f"generation {generation} of the pipeline is over: another run took it",
        hint="Clear the task open with everything downstream.",
    )
