"""A pipeline from PostgreSQL into MariaDB, and what MariaDB's own client reads there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg

from airflow_parallel_apply.demo.mariadb import MariaDbServer
from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from airflow_parallel_apply.pipeline.model.finding import Finding
from tests.support.rig import Rig, execute

_ESCAPES: Final = {"\\t": "\t", "\\n": "\n", "\\\\": "\\", "\\0": "\0"}


@dataclass(frozen=True, kw_only=True)
class MariaDbRig:
    """`rig`: the pipeline."""

    rig: Rig
    server: MariaDbServer
    database: str = "test"

    def make(self, source: Sequence[str], target: Sequence[str]) -> None:
        """Run statements at both sides: how tables come into being."""
        execute(self.rig.source_dsn, *source)
        self.server.run(";".join(target), database=self.database)

    def propose(self) -> list[Finding]:
        """Make at the target what `check` proposes for tables that are missing; what it finds then."""
        report = check_pipeline(self.rig.config, self.rig.source, self.rig.target)
        for finding in report.findings:
            if finding.is_table:
                self.server.run(";".join(finding.fix), database=self.database)
        checked = check_pipeline(self.rig.config, self.rig.source, self.rig.target)
        return [finding for finding in checked.findings if finding.is_table]

    def insert(self, table: str, values: Sequence[object]) -> None:
        """Insert one row at the source; each value as text of its column's type."""
        marks = ", ".join(["%s"] * len(values))
        with psycopg.connect(self.rig.source_dsn) as connection:
            connection.execute(f"INSERT INTO {table} VALUES ({marks})", list(values))

    def read(self, query: str) -> list[tuple[str | None, ...]]:
        """The rows of a query at the target, as MariaDB's own client prints them."""
        lines = self.server.run(query, database=self.database).split("\n")[:-1]
        return [tuple(_plain(value) for value in line.split("\t")) for line in lines]

    def written(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query at the source, as text."""
        with psycopg.connect(self.rig.source_dsn) as connection:
            rows = connection.execute(query).fetchall()
        return [tuple(None if value is None else str(value) for value in row) for row in rows]

    def require_equal(self, query: str, *, at_source: str = "") -> None:
        """Require a query to have the same rows on both sides, in any order."""
        found, wanted = self.read(query), self.written(at_source or query)
        assert sorted(found, key=repr) == sorted(wanted, key=repr)


def mariadb_rig(
    source_dsn: str, url: str, ledger_dsn: str, directory: Path, server: MariaDbServer, **changes: Any
) -> MariaDbRig:
    """A pipeline `demo` with four channels, which begins with empty tables."""
    parameters: dict[str, Any] = {"pipeline": "demo", "log_url": str(directory / "log"), "start": Start.EMPTY}
    config = PipelineConfig(**parameters | {"channels": 4, "lanes": 2} | changes)
    rig = Rig(config=config, source_dsn=source_dsn, target_dsn=url, ledger_dsn=ledger_dsn)
    return MariaDbRig(rig=rig, server=server)


def _plain(text: str) -> str | None:
    if text == "NULL":
        return None
    return re.sub(r"\\[tn0\\]", lambda found: _ESCAPES[found[0]], text)
