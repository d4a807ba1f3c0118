"""Partitions that came and went between two looks at the catalog, found by the rows that were written to them.

The catalog keeps no trace of a partition that was attached and detached, or made and dropped, in between. But the slot
names each partition that a row was written to, as it was then (`descriptions.py`). One that is registered with its root
is followed as the registration has it, which shows all that a read comes to; so is one up to the message that tells
that it is gone. Any other had left by then, and its rows with it, which the slot does not send; even if it has come
back since, they have not been sent. A partition to which no row was written took nothing away that it had not brought.
Nor is anything missing of a table that is gone as a whole.
"""

from __future__ import annotations

from collections.abc import Callable

from airflow_parallel_apply.pipeline.config import PipelineConfig
from airflow_parallel_apply.pipeline.errors import SourceError
from airflow_parallel_apply.pipeline.source.postgres.ddl.removals import ToldRemoval
from airflow_parallel_apply.pipeline.source.postgres.proof.proof import recopy_hint
from airflow_parallel_apply.pipeline.source.postgres.proof.registration import Bounds, Registration
from airflow_parallel_apply.pipeline.source.postgres.wire.messages import WireRelation


class WrittenParts:
    """For one read of the slot, with what was proven before it. `is_there` tells whether the source has a table now."""

    def __init__(self, registration: Registration, config: PipelineConfig, *, is_there: Callable[[int], bool]) -> None:
        self._config = config
        self._is_there = is_there
        self._names = {table.oid: table.name for table in registration.tables}
        self._roots = {part.oid: table.oid for table in registration.tables for part in table.partitions}
        self._removed = {part.oid: part for part in registration.removed}

    def leaves(self, told: ToldRemoval, commit_lsn: int) -> Bounds | None:
        """The rows that went with a partition where a message tells it, as was proven; None if it is another message
        that does, or if the partition had come after what was registered: no row was written to that.
        """
        found = self._removed.get(told.part)
        for oid in told.parts:
            self._removed.pop(oid, None)
        return found.bounds if found is not None and found.root == told.root and commit_lsn < found.lsn else None

    def is_part(self, relation: WireRelation, root: int, commit_lsn: int) -> bool:
        """True if rows of a followed table were written to this one, which is its partition, in a transaction that
        commits there. Errors: `SourceError` for one that the registration does not know.
        """
        if root not in self._names:
            return False
        own_name = self._names.get(relation.oid)
        removed = self._removed.get(relation.oid)
        is_told = removed is not None and removed.root == root and commit_lsn < removed.lsn
        is_known = self._roots.get(relation.oid) == root or is_told
        if is_known or not self._is_there(root):
            # One that is published itself is a table that has been attached: it has definitions of its own.
            return own_name is None
        name = self._names[root]
        raise SourceError(
            f"rows of {name} were written to {relation.schema}.{relation.table}, a partition that is none any more "
            "and came after the last capture: the slot does not send that its rows left with it",
            op="capture",
            pipeline=self._config.pipeline,
            table=name,
            hint=recopy_hint([name] if own_name is None else [name, own_name], self._config),
        )
