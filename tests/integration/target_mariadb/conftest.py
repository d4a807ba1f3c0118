"""A pipeline into MariaDB, without Spark unless a test asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_parallel_apply.demo.mariadb import MariaDbServer
from tests.support.mariadb_rig import MariaDbRig, mariadb_rig


@pytest.fixture
def maria(
    source_dsn: str, mariadb_url: str, ledger_dsn: str, tmp_path: Path, mariadb_server: MariaDbServer
) -> MariaDbRig:
    return mariadb_rig(source_dsn, mariadb_url, ledger_dsn, tmp_path, mariadb_server)
