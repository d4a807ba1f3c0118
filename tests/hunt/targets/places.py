"""Places of a lane that writes to a target of another kind: each as `Fault` of
tests/support/step_process.py has it, below the package."""

from __future__ import annotations

from typing import Final, Literal

Place = tuple[str, Literal["before", "after"]]

_TARGET: Final = "pipeline.target"
PLACES: Final[dict[str, dict[str, Place]]] = {
    "files": {
        "behind a file's data": (f"{_TARGET}.files.feed:FeedWriter.finish", "after"),
        "before files are committed": (f"{_TARGET}.files.target:FilesTarget.commit", "before"),
        "before a manifest": ("pipeline.encode.files.place:FilePlace.publish", "before"),
        "behind a manifest": ("pipeline.encode.files.place:FilePlace.publish", "after"),
        "behind a commit of files": (f"{_TARGET}.files.target:FilesTarget.commit", "after"),
    },
    "delta": {
        "before a lake's commit": (f"{_TARGET}.delta.target:DeltaTarget.commit", "before"),
        "behind a decision, before its merge": (f"{_TARGET}.delta.target:DeltaTarget._finish", "before"),
        "behind a merge": (f"{_TARGET}.delta.target:DeltaTarget._finish", "after"),
        "behind a lake's commit": (f"{_TARGET}.delta.target:DeltaTarget.commit", "after"),
    },
    "mariadb": {
        "before MariaDB's commit": (f"{_TARGET}.mariadb.target:MariaDbTarget.commit", "before"),
        "inside MariaDB's transaction": (f"{_TARGET}.mariadb.target:move", "before"),
        "before staging is dropped": (f"{_TARGET}.mariadb.target:drop_staging", "before"),
        "behind MariaDB's commit": (f"{_TARGET}.mariadb.target:MariaDbTarget.commit", "after"),
    },
    "kafka": {
        "before messages are sent": (f"{_TARGET}.kafka.target:KafkaTarget.commit", "before"),
        "between messages and position": (f"{_TARGET}.kafka.sending:Sender.send", "after"),
        "behind a position that is sent": (f"{_TARGET}.kafka.positions:Positions.write", "after"),
        "behind a transaction of messages": (f"{_TARGET}.kafka.target:KafkaTarget.commit", "after"),
    },
}
PLACES["delta-feed"] = PLACES["delta"]
"""By the target's word."""
