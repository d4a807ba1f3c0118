"""How far an initial copy has come: `CopyProgress`, for people and programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyProgress:
    """The progress of a copy. `parts`: tables, or pieces of them. `rows`, `bytes`: of COPY text, parts under way
    included. `fraction`: of the source's bytes.

    `seconds`: since it began, up to the last row. `seconds_left`: None while there is nothing to tell it from.
    """

    phase: str
    parts: int
    parts_done: int
    rows: int
    bytes: int
    seconds: float
    fraction: float
    seconds_left: float | None
    failure: str | None

    @property
    def bytes_per_second(self) -> float:
        """Since it began."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """For `status --json`."""
        return {**asdict(self), "bytes_per_second": round(self.bytes_per_second)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> CopyProgress:
        """Inverse of `to_json`."""
        return cls(**{name: found for name, found in value.items() if name != "bytes_per_second"})

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f", about {_duration(self.seconds_left)} left"
        return (
            f"{self.phase}: {self.parts_done} of {self.parts} parts, {self.rows:,} rows, {self.bytes / 1e6:,.1f} MB "
            f"({self.fraction:.0%}) in {_duration(self.seconds)}, {self.bytes_per_second / 1e6:,.1f} MB/s{left}"
        )


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, seconds_left = divmod(whole, 60)
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left:02} min" if hours else f"{minutes} min {seconds_left:02} s"
