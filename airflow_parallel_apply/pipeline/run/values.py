"""Values that the steps of a run hand to each other through XCom: copies, for people and for addressing (law 8)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow_parallel_apply.pipeline.capture.values import Prepared
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.ledger.protocol import RunBounds

if TYPE_CHECKING:
    from airflow_parallel_apply.pipeline.store.protocol import StoreStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureReport:
    """The capture task's report."""

    prepared: Prepared
    bounds: RunBounds
    until: str
    """The bound's offset in the source's form."""
    captured: str
    """The log's."""
    last_seqno: int
    rows: int
    done: bool
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """For XCom."""
        return {
            "log_id": self.prepared.log_id,
            "created": list(self.prepared.created),
            "until_offset": self.until,
            "until_time": None if self.bounds.until_time is None else self.bounds.until_time.isoformat(),
            "until_seqno": self.bounds.until_seqno,
            "captured_offset": self.captured,
            "last_seqno": self.last_seqno,
            "rows": self.rows,
            "done": self.done,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRun:
    """A run under its generation: what lanes and close need to find it."""

    pipeline: str
    run_id: str
    generation: int
    log_id: str
    until_seqno: int | None
    nothing_to_do: bool
    lanes: int
    coordinator_state: dict[str, Any]
    until_offset: str = ""
    """The bound's in the source's form, for people; the ledger has the bounds."""
    is_end_asked: bool = False
    """True if that is what somebody asked for, as `until`."""
    until_time: str | None = None
    """End of the run's interval where that bounds it, ISO 8601."""
    ddl: str = ""
    """The `ddl` that the run was opened with; empty: the release before told none."""
    owner: str = ""
    """The lease's owner; empty: the release before told none."""

    def to_json(self) -> dict[str, Any]:
        """For XCom."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, value: Any) -> OpenedRun:
        """Inverse of `to_json`. What an earlier release told beside it is passed over. Errors: `ConfigurationError` for
        what is no run, as after somebody edited the XCom.
        """
        try:
            return cls(**{name: value[name] for name in cls.__slots__ if name in value})
        except TypeError as error:
            raise ConfigurationError(
                "what open has left for the lanes and for close, the XCom opened, is no run any more",
                hint="Clear open with everything downstream of it.",
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedRun:
    """A clean shutdown: every channel at one seqno, nothing claimed."""

    pipeline: str
    generation: int
    stop_seqno: int
    channels: int
    rows: int
    stopped_early: bool
    store: StoreStatus | None = None
    """The work of a router for the run, by channel; None with another store."""

    def to_json(self) -> dict[str, Any]:
        """For XCom."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return {**found, "store": None if self.store is None else asdict(self.store)}
