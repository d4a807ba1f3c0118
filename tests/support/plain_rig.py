"""A target role that has nothing but grants on the tables: it may not set session_replication_role."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from airflow_parallel_apply.pipeline.config import PipelineConfig, Start, TablePatterns
from tests.support.rig import Rig, execute


class PlainRig(Rig):
    """Applies as a role that has nothing but grants on the tables. `both` makes them as the owner."""

    def both(self, *statements: str) -> None:
        owner = psycopg.conninfo.make_conninfo(self.target_dsn, user="postgres")
        role = psycopg.conninfo.conninfo_to_dict(self.target_dsn)["user"]
        execute(self.source_dsn, *statements)
        execute(owner, *statements)
        execute(owner, f"GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA public TO {role}")


@contextmanager
def plain_rig(source_dsn: str, target_dsn: str, directory: Path) -> Iterator[PlainRig]:
    role = f"plain_{uuid.uuid4().hex[:8]}"
    database = psycopg.conninfo.conninfo_to_dict(target_dsn)["dbname"]
    execute(target_dsn, f"CREATE ROLE {role} LOGIN", f"GRANT CREATE ON DATABASE {database} TO {role}")
    config = PipelineConfig(
        pipeline="p",
        log_url=str(directory / "log"),
        start=Start.EMPTY,
        channels=4,
        lanes=2,
        tables=TablePatterns(include=("public.*",)),
        epoch_max_changes=40,
    )
    plain = psycopg.conninfo.make_conninfo(target_dsn, user=role)
    yield PlainRig(config=config, source_dsn=source_dsn, target_dsn=plain)
    execute(target_dsn, f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")
