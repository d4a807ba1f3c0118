"""Opens targets of the scheme `kafka`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.encode.files.place import FilePlace
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.log.commit_times import CommitTimes
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.epoch import Unit
from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress
from airflow_parallel_apply.pipeline.target.kafka.client import kafka_errors
from airflow_parallel_apply.pipeline.target.kafka.loader import KafkaLoader
from airflow_parallel_apply.pipeline.target.kafka.positions import Positions
from airflow_parallel_apply.pipeline.target.kafka.staging import folder_of
from airflow_parallel_apply.pipeline.target.kafka.target import KafkaTarget
from airflow_parallel_apply.pipeline.target.kafka.topics import Topics
from airflow_parallel_apply.pipeline.target.loading import Loader
from airflow_parallel_apply.pipeline.target.protocol import Target
from airflow_parallel_apply.pipeline.target.relations import Relations


class KafkaConnector:
    """See `TargetConnector`."""

    def open(
        self, endpoint: Endpoint, pipeline: str, *, relations: Relations, ledger: Callable[[], str] | None = None
    ) -> Target:
        return KafkaTarget(KafkaAddress.parse(endpoint), pipeline, relations=relations, ledger=ledger)

    def open_with_ledger(self, endpoint: Endpoint, pipeline: str, *, relations: Relations) -> None:  # noqa: ARG002  # topics hold no ledger
        return None

    def takes_changes(self, endpoint: Endpoint) -> bool:  # noqa: ARG002  # a topic is a feed
        return True

    def loader(
        self, endpoint: Endpoint, unit: Unit, relations: Sequence[Relation], *, commit_times: CommitTimes | None = None
    ) -> Loader:
        if commit_times is None:
            raise ConfigurationError("this stage gives no commit times, which messages need", op="stage")
        return KafkaLoader(
            address=KafkaAddress.parse(endpoint),
            pipeline=unit.pipeline,
            folder=folder_of(unit),
            relations=tuple(relations),
            commit_times=commit_times,
        )

    def probe(self, endpoint: Endpoint) -> None:
        address = KafkaAddress.parse(endpoint)
        FilePlace(address.staging).names(".")
        with kafka_errors("probe"):
            Topics(address).cluster()

    def drop_commands(self, pipeline: str) -> tuple[str, ...]:
        return (f"kafka-topics.sh --delete --topic '<prefix>._positions.{pipeline}'",)

    def applied_logs(self, endpoint: Endpoint) -> dict[str, str]:
        address = KafkaAddress.parse(endpoint)
        found: dict[str, str] = {}
        with kafka_errors("check"):
            for topic in sorted(Topics(address).counts()):
                pipeline = topic.removeprefix(address.positions_prefix)
                if pipeline != topic:
                    with closing(Positions(address, pipeline)) as positions:
                        head = positions.head()
                    found |= {} if head is None else {pipeline: head.log_id}
        return found
