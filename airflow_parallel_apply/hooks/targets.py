"""Hooks of our targets that are no PostgreSQL: a connection type and a form each, one promise for all."""

from __future__ import annotations

from airflow_parallel_apply.hooks.pipeline import PipelineHook


class TargetHook(PipelineHook):
    """The target of a pipeline, whose ledger is elsewhere. The button Test reaches for it."""

    def test_connection(self) -> tuple[bool, str]:
        """Answer the button Test of the connection form."""
        from airflow_parallel_apply.hooks.connections import database
        from airflow_parallel_apply.pipeline.errors import ParallelApplyError
        from airflow_parallel_apply.pipeline.target.open import target_connector

        try:
            endpoint = database(self.parallel_apply_conn_id, parameter=self.conn_name_attr)
            target_connector(endpoint).probe(endpoint)
        except ParallelApplyError as error:
            return False, str(error)
        return True, endpoint.place


class FilesHook(TargetHook):
    """A directory of files."""

    conn_type = "parallel_apply_files"
    hook_name = "Parallel Apply (files)"


class DeltaHook(TargetHook):
    """A Delta lake."""

    conn_type = "parallel_apply_delta"
    hook_name = "Parallel Apply (Delta Lake)"


class MariaDbHook(TargetHook):
    """A database of MariaDB or MySQL."""

    conn_type = "parallel_apply_mariadb"
    hook_name = "Parallel Apply (MariaDB)"


class KafkaHook(TargetHook):
    """Topics of a Kafka cluster."""

    conn_type = "parallel_apply_kafka"
    hook_name = "Parallel Apply (Kafka)"
