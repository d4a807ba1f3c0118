"""Topics: which there are, with how many partitions, and those that the target makes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

import tenacity

from airflow_parallel_apply.pipeline.errors import Unavailable
from airflow_parallel_apply.pipeline.target.kafka.address import KafkaAddress
from airflow_parallel_apply.pipeline.target.kafka.client import PATIENCE_SECONDS, library, make_admin, refusals

_LOOK_AGAIN_SECONDS: Final = 0.1


class Topics:
    """Not thread-safe. Errors: librdkafka's own; `Unavailable`."""

    def __init__(self, address: KafkaAddress) -> None:
        self._address = address
        self._admin: Any = None
        self._partitions: dict[str, int] = {}
        self._refusal: Any = None

    def cluster(self) -> str:
        """The cluster's own id."""
        return str(self._metadata().cluster_id)

    def counts(self) -> Mapping[str, int]:
        """The number of partitions of each topic."""
        return {name: len(found.partitions) for name, found in self._metadata().topics.items()}

    def removal(self, topic: str) -> tuple[str, str] | None:
        """By which setting brokers remove records of a topic of ours, and the command that keeps them; None where they
        keep the last one of each key, or do not say.
        """
        policy = self._cleanup_policy(topic)
        if policy in (None, "compact"):
            return None
        keep = f"kafka-configs.sh --bootstrap-server {self._address.servers} --alter --topic {shlex.quote(topic)}"
        return f"cleanup.policy={policy}", f"{keep} --add-config cleanup.policy=compact"

    def ensure(self, topic: str, *, partitions: int, is_compacted: bool) -> int:
        """Make a topic where there is none; how many partitions it has."""
        if topic not in self._partitions:
            if (found := self.counts().get(topic, 0)) == 0:
                self._make(topic, partitions, is_compacted=is_compacted)
                found = self._made(topic)
            self._partitions[topic] = found
        return self._partitions[topic]

    def forget(self) -> None:
        """Look topics up anew: somebody may have deleted one."""
        self._partitions.clear()

    def delete(self, topic: str) -> bool:
        """Delete a topic; False where there was none."""
        if topic not in self.counts():
            return False
        self._client().delete_topics([topic], operation_timeout=PATIENCE_SECONDS)[topic].result()
        self._partitions.pop(topic, None)
        return True

    def _cleanup_policy(self, topic: str) -> str | None:
        kafka = library()
        asked = kafka.admin.ConfigResource(kafka.admin.ConfigResource.Type.TOPIC, topic)
        try:
            found = self._client().describe_configs([asked], request_timeout=PATIENCE_SECONDS)[asked].result()
        except kafka.KafkaException:
            return None
        return str(found["cleanup.policy"].value) if "cleanup.policy" in found else None

    def _make(self, topic: str, partitions: int, *, is_compacted: bool) -> None:
        kafka = library()
        wanted = kafka.admin.NewTopic(
            topic,
            num_partitions=partitions,
            replication_factor=self._address.replication,
            config={"cleanup.policy": "compact"} if is_compacted else {},
        )
        try:
            self._client().create_topics([wanted], operation_timeout=PATIENCE_SECONDS)[topic].result()
        except kafka.KafkaException as error:
            if error.args[0].code() != kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def _made(self, topic: str) -> int:
        """The number of partitions of a new topic, once brokers tell each other of it."""
        waiting = tenacity.Retrying(
            retry=tenacity.retry_if_result(lambda count: count == 0),
            stop=tenacity.stop_after_delay(PATIENCE_SECONDS),
            wait=tenacity.wait_fixed(_LOOK_AGAIN_SECONDS),
            retry_error_callback=lambda _: 0,
        )
        found: int = waiting(lambda: len(self._metadata(topic).topics[topic].partitions))
        if not found:
            raise Unavailable(f"topic {topic} was made, and no broker knows its partitions yet", op="make topic")
        return found

    def _metadata(self, topic: str | None = None) -> Any:
        client, kafka = self._client(), library()
        named = () if topic is None else (topic,)
        try:
            return client.list_topics(*named, timeout=PATIENCE_SECONDS)
        except kafka.KafkaException as error:
            client.poll(0)
            if self._refusal is None:
                raise
            # Of brokers that refuse the connection the call knows only that none answered.
            raise kafka.KafkaException(self._refusal) from error

    def _client(self) -> Any:
        if self._admin is None:
            self._admin = make_admin(self._address, self._hear)
        return self._admin

    def _hear(self, error: Any) -> None:
        if error.code() in refusals():
            self._refusal = error
