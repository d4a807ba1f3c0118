"""Opens targets of the scheme `delta`: Delta lakes in a directory or a bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyarrow import fs

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.errors import PlanError, Unavailable
from airflow_parallel_apply.pipeline.log.commit_times import CommitTimes
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import Unit
from airflow_parallel_apply.pipeline.target.delta.feed import FeedLoader
from airflow_parallel_apply.pipeline.target.delta.loader import DeltaLoader
from airflow_parallel_apply.pipeline.target.delta.place import CONTROL, lake_of
from airflow_parallel_apply.pipeline.target.delta.positions import PositionsTable
from airflow_parallel_apply.pipeline.target.delta.staging import scope_of
from airflow_parallel_apply.pipeline.target.delta.target import DeltaTarget
from airflow_parallel_apply.pipeline.target.loading import Loader
from airflow_parallel_apply.pipeline.target.protocol import Target
from airflow_parallel_apply.pipeline.target.relations import Relations


class DeltaConnector:
    """See `TargetConnector`."""

    def open(
        self, endpoint: Endpoint, pipeline: str, *, relations: Relations, ledger: Callable[[], str] | None = None
    ) -> Target:
        return DeltaTarget(lake_of(endpoint.url), pipeline, relations=relations, ledger=ledger)

    def open_with_ledger(self, endpoint: Endpoint, pipeline: str, *, relations: Relations) -> None:
        """A lake holds no ledger."""
        del endpoint, pipeline, relations

    def takes_changes(self, endpoint: Endpoint) -> bool:
        return lake_of(endpoint.url).is_feed

    def loader(
        self, endpoint: Endpoint, unit: Unit, relations: Sequence[Relation], *, commit_times: CommitTimes | None = None
    ) -> Loader:
        lake = lake_of(endpoint.url)
        if lake.is_feed:
            if commit_times is None:
                raise PlanError("a feed needs to know when transactions committed", op="stage", pipeline=unit.pipeline)
            return FeedLoader(
                lake=lake,
                pipeline=unit.pipeline,
                scope=scope_of(unit.channel, unit.group),
                token=unit.token,
                relations=tuple(relations),
                commit_times=commit_times,
            )
        return DeltaLoader(
            lake=lake,
            pipeline=unit.pipeline,
            scope=scope_of(unit.channel, unit.group),
            token=unit.token,
            relations=tuple(relations),
        )

    def probe(self, endpoint: Endpoint) -> None:
        lake = lake_of(endpoint.url)
        root = lake.path(lake.root)
        # A bucket has no directories before their first file.
        place = root if lake.is_local else root.partition("/")[0]
        try:
            (found,) = lake.files.get_file_info([place])
        except OSError as error:
            raise Unavailable(" ".join(str(error).split()), op="probe") from error
        if found.type is not fs.FileType.Directory:
            raise Unavailable(f"there is no {'directory' if lake.is_local else 'bucket'} {place}", op="probe")

    def drop_commands(self, pipeline: str) -> tuple[str, ...]:
        return (f"rm -r <lake>/{CONTROL}/{pipeline}",)

    def applied_logs(self, endpoint: Endpoint) -> dict[str, str]:
        lake = lake_of(endpoint.url)
        root = lake.path(lake.uri(CONTROL))
        try:
            found = lake.files.get_file_info(fs.FileSelector(root, allow_not_found=True))
        except OSError as error:
            raise Unavailable(" ".join(str(error).split()), op="check") from error
        names = [info.path.rpartition("/")[2] for info in found if info.type is fs.FileType.Directory]
        states = {name: PositionsTable(lake, name).read() for name in names}
        return {name: state.log_id for name, state in states.items() if state is not None}
