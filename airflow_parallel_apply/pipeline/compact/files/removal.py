"""Removing what a snapshot has taken the place of: former snapshots, and the feed's files that it has whole.

Nothing that a reader may still be reading goes: the snapshot has to have been there for a while. Manifests stay, so the
feed's history can be told, though its rows are gone.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from airflow_parallel_apply.pipeline.encode.files.dataset import SNAPSHOTS, Dataset
from airflow_parallel_apply.pipeline.target.files.address import FilesAddress
from airflow_parallel_apply.pipeline.target.files.snapshots import SNAPSHOT, snapshots


def remove_folded(
    address: FilesAddress, grace: timedelta, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> tuple[str, ...]:
    """Remove the files; their paths. What is gone already is passed over. Errors: those of `FilePlace`."""
    found = snapshots(address)
    made = found.manifests()
    old = [manifest for manifest in made if clock() - manifest.created >= grace]
    if not old:
        return ()
    feed = Dataset(address.place())
    folded = {file.path for manifest in made if manifest.version < old[-1].version for file in manifest.files}
    covered = old[-1].positions[SNAPSHOT]
    changes = {file.path for manifest in feed.manifests() for file in manifest.files if file.last_seqno <= covered}
    removed = [f"{SNAPSHOTS}/{path}" for path in found.place.names("") if path in folded]
    removed += [path for path in feed.place.names("") if path in changes]
    for path in removed:
        feed.place.remove(path)
    return tuple(removed)
