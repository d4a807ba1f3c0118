"""A MariaDB server in a hunt: its tables are the source's."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from airflow_parallel_apply.demo.mariadb import MariaDbServer
from airflow_parallel_apply.pipeline.errors import Unavailable
from tests.hunt.targets.alterations import Alteration
from tests.hunt.targets.judging import unequal_tables
from tests.support.rig import Rig

_DATABASE: Final = "hunt"
_SETTINGS: Final = {
    "innodb_buffer_pool_size": "32M",
    "innodb_log_file_size": "16M",
    "innodb_flush_method": "nosync",
}
_OWN: Final = "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME NOT IN ('sys', 'mysql')"
_UNFIT: Final = re.compile(r"table (\w+)\.(\w+), column (\w+)")
_TYPES: Final = {"text": "longtext", "integer": "int", "bigint": "bigint"}
"""The types of the columns that the grammar adds."""


class HuntedMariaDb:
    """Implements `HuntedTarget`."""

    def __init__(self, directory: Path) -> None:
        self._server = MariaDbServer(directory / "mariadb", settings=_SETTINGS).start()
        self._kept = directory / "mariadb.kept"

    @property
    def url(self) -> str:
        return self._server.url(_DATABASE)

    def fresh(self) -> None:
        shutil.rmtree(self._kept, ignore_errors=True)
        found = self._server.run(f"{_OWN} AND SCHEMA_NAME NOT LIKE '%\\_schema'").splitlines()
        self._server.run("".join(f"DROP DATABASE `{name}`;" for name in found) + f"CREATE DATABASE {_DATABASE}")

    def crash(self) -> None:
        self._server.kill()
        self._server.start()

    def keep(self) -> None:
        self._server.stop()
        self._copy(self._server.directory, self._kept)
        self._server.start()

    def restore(self) -> None:
        if self._kept.exists():
            self._server.kill()
            self._copy(self._kept, self._server.directory)
            self._server.start()

    def differences(self, rig: Rig) -> list[str]:
        return unequal_tables(rig)

    def run(self, statements: Sequence[str]) -> str:
        done = []
        for statement in statements:
            try:
                self._server.run(statement, database=_DATABASE)
                done.append(statement)
            except Unavailable as error:
                done.append(f"{statement} FAILED {error}")
        return "; ".join(done)

    def ask(self, query: str) -> str:
        """The rows of a query, as MariaDB's own client prints them."""
        return self._server.run(query, database=_DATABASE)

    def alter(self, rig: Rig, alterations: Sequence[Alteration]) -> str:
        statements: list[str] = []
        for one in alterations:
            schema = _DATABASE if one.schema == "public" else one.schema
            table = f"`{schema}`.`{one.table}`"
            match one.action:
                case "add":
                    default = f" DEFAULT {one.default}" if one.default else ""
                    statements.append(f"ALTER TABLE {table} ADD COLUMN `{one.column}` {_TYPES[one.type_name]}{default}")
                case "drop":
                    statements.append(f"ALTER TABLE {table} DROP COLUMN `{one.column}`")
                case "rename":
                    statements.append(f"ALTER TABLE {table} RENAME COLUMN `{one.column}` TO `{one.new_name}`")
        return self.run(statements)

    def follow(self, told: str) -> str:
        found = _UNFIT.search(told)
        if found is None or "text column takes" not in told:
            return ""
        schema, table, column = found.groups()
        database = _DATABASE if schema == "public" else schema
        return self.run([f"ALTER TABLE `{database}`.`{table}` MODIFY COLUMN `{column}` longtext"])

    def begin_anew(self) -> None:
        self.fresh()

    def close(self) -> None:
        self._server.stop()

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        """With owners and modes, which the server insists on."""
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run(["cp", "-a", str(source), str(target)], check=True)
