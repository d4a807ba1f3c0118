"""A unit's steps as files: those that were staged, and those that a lane writes by itself just before its commit."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_parallel_apply.pipeline.encode.files.manifest import DataFile
from airflow_parallel_apply.pipeline.errors import PlanError, StagingLost
from airflow_parallel_apply.pipeline.model.epoch import GroupPart, StagedUnit, Unit
from airflow_parallel_apply.pipeline.target.feed_rows import changed_rows, require_unaltered, truncate_rows
from airflow_parallel_apply.pipeline.target.files.address import FilesAddress
from airflow_parallel_apply.pipeline.target.files.feed import FeedWriter, file_of
from airflow_parallel_apply.pipeline.target.files.head import Head, part_name
from airflow_parallel_apply.pipeline.target.relations import Relations
from airflow_parallel_apply.pipeline.target.steps import Merge, Redefine, Remove, Replay, Statement, Step, Truncate


class UnitFiles:
    """The files of one unit. `merged`: what of it was staged. `discard` removes what was written here, when the commit
    came to nothing.
    """

    def __init__(self, address: FilesAddress, relations: Relations, unit: Unit, steps: Sequence[Step]) -> None:
        """Errors: those of `FeedWriter`; `PlanError` for a step that no files can follow."""
        require_unaltered(steps, relations)
        self._unit = unit
        self.merged = [step.staged for step in steps if isinstance(step, Merge)]
        self._writer: FeedWriter | None = None
        tables = [table for staged in self.merged for table in staged.tables]
        if any(isinstance(step, Replay | Truncate) for step in steps):
            commit_times = relations.commit_times(unit.after_seqno, unit.last_seqno)
            self._writer = FeedWriter(address, relations=relations, commit_times=commit_times)
            try:
                for step in steps:
                    self._follow(step, self._writer)
                tables += self._writer.finish()
            except BaseException:
                self.discard()
                raise
        self.files: tuple[DataFile, ...] = tuple(file_of(table) for table in tables)

    def require_staged(self, head: Head) -> None:
        """Raise `StagingLost` for what another claim than the commit's staged, or a former stager of a group's part."""
        for staged in self.merged:
            if staged.tables and not _counts(staged, self._unit, head):
                raise StagingLost(
                    "what a former claim staged is nobody's any more", channel=self._unit.channel, op="commit"
                )

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.discard()

    @staticmethod
    def _follow(step: Step, writer: FeedWriter) -> None:
        match step:
            case Merge():
                pass
            case Replay(rows):
                writer.write(changed_rows(rows()))
            case Truncate():
                writer.write([truncate_rows(step)])
            case Redefine() | Statement() | Remove():
                # A row comes in a folder of its own definition: nothing is to be altered.
                pass
            case _:
                raise PlanError(f"files cannot follow {step}", op="commit")


def _counts(staged: StagedUnit, unit: Unit, head: Head) -> bool:
    if isinstance(staged.unit.kind, GroupPart):
        name = part_name(staged.unit.kind.group, staged.unit.kind.channel)
        return head.parts.get(name) == staged.unit.token
    return staged.unit.token == unit.token
