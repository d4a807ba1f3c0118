"""The options of a compaction, and its report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

from airflow_parallel_apply.pipeline.errors import ConfigurationError

MIB: Final = 2**20
DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactOptions:
    """`until_seqno`: fold no later transaction; None: up to the low watermark. `memory_bytes`: rows that are folded at
    a time; disk takes the rest. `remove`: also remove what a snapshot has taken the place of for `grace`.
    Errors: `ConfigurationError`.
    """

    until_seqno: int | None = None
    memory_bytes: int = 256 * MIB
    remove: bool = False
    grace: timedelta = DAY

    def __post_init__(self) -> None:
        if self.memory_bytes < 1 or self.grace < timedelta(0):
            raise ConfigurationError(
                f"a compaction in {self.memory_bytes} bytes, that removes after {self.grace}, is not possible",
                hint="Give a positive number of bytes, and no negative number of hours.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactReport:
    """The newest snapshot, and what was done for it. `seqno`: its last transaction; None: there is no snapshot.
    `made`: False where it was there before. `rows`: by table. `replaced`: former tables, whose names others have now.
    `removed`: paths of files that are gone.
    """

    seqno: int | None
    made: bool
    rows: dict[str, int]
    bytes_: int
    files: tuple[str, ...]
    replaced: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The form of XComs and of `--json`."""
        return {
            **asdict(self),
            "files": list(self.files),
            "replaced": list(self.replaced),
            "removed": len(self.removed),
        }

    def __str__(self) -> str:
        if self.seqno is None:
            found = "nothing to fold yet"
        else:
            found = (
                f"{'folded' if self.made else 'nothing new: the newest snapshot has'} everything up to seqno "
                f"{self.seqno}: {sum(self.rows.values()):,} rows of {len(self.rows)} tables, "
                f"{self.bytes_ / MIB:,.1f} MB in {len(self.files)} files"
            )
        return f"{found}; removed {len(self.removed):,} files" if self.removed else found
