"""Opens targets of the scheme `files`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.encode.files.dataset import Dataset
from airflow_parallel_apply.pipeline.errors import EncodeError, PlanError
from airflow_parallel_apply.pipeline.log.commit_times import CommitTimes
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import Unit
from airflow_parallel_apply.pipeline.target.files.address import FilesAddress
from airflow_parallel_apply.pipeline.target.files.head import Head
from airflow_parallel_apply.pipeline.target.files.loader import FilesLoader
from airflow_parallel_apply.pipeline.target.files.target import FilesTarget
from airflow_parallel_apply.pipeline.target.loading import Loader
from airflow_parallel_apply.pipeline.target.protocol import Target
from airflow_parallel_apply.pipeline.target.relations import Relations


class FilesConnector:
    """See `TargetConnector`."""

    def open(
        self, endpoint: Endpoint, pipeline: str, *, relations: Relations, ledger: Callable[[], str] | None = None
    ) -> Target:
        return FilesTarget(FilesAddress.parse(endpoint.url), pipeline, relations=relations, ledger=ledger)

    def open_with_ledger(self, endpoint: Endpoint, pipeline: str, *, relations: Relations) -> None:
        """No ledger is kept in files."""

    def takes_changes(self, endpoint: Endpoint) -> bool:
        return True

    def loader(
        self, endpoint: Endpoint, unit: Unit, relations: Sequence[Relation], *, commit_times: CommitTimes | None = None
    ) -> Loader:
        if commit_times is None:
            raise PlanError("a feed needs to know when transactions committed", op="stage", pipeline=unit.pipeline)
        return FilesLoader(
            address=FilesAddress.parse(endpoint.url), relations=tuple(relations), commit_times=commit_times
        )

    def probe(self, endpoint: Endpoint) -> None:
        Dataset(FilesAddress.parse(endpoint.url).place()).newest()

    def drop_commands(self, pipeline: str) -> tuple[str, ...]:
        return ()

    def applied_logs(self, endpoint: Endpoint) -> dict[str, str]:
        try:
            head = Head.of(Dataset(FilesAddress.parse(endpoint.url).place()).newest())
        except EncodeError:
            return {}
        return {head.pipeline: head.log_id} if head.pipeline else {}
