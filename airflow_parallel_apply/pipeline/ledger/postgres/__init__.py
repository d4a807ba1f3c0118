"""A ledger in PostgreSQL: in the target's database, or in another one."""

from airflow_parallel_apply.pipeline.ledger.postgres.ledger import PostgresLedger

__all__ = ["PostgresLedger"]
