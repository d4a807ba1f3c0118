"""Databases that are lent to one test after another, since making one costs more than most tests do."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.demo.postgres import PostgresServer
from tests.support.handed_on import end_resting

_numbers = count()

_SPARES: Final = 3
"""As many rest before the first is lent again, so that what a test left running has time to notice."""

_END_SESSIONS: Final = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = %s"
_DROP_ORIGINS: Final = (
    "SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin WHERE starts_with(roname, "
    "'parallel_apply:' || (SELECT oid FROM pg_database WHERE datname = %s) || ':')"
)
_DROP_SLOTS: Final = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s"

_EMPTY: Final = """
DO $$
DECLARE statement text;
BEGIN
    FOR statement IN
        SELECT format('DROP EVENT TRIGGER %I', evtname) FROM pg_event_trigger
        UNION ALL SELECT format('DROP PUBLICATION %I', pubname) FROM pg_publication
        UNION ALL SELECT format('DROP EXTENSION %I CASCADE', extname) FROM pg_extension WHERE extname <> 'plpgsql'
        UNION ALL SELECT format('DROP SCHEMA %I CASCADE', nspname) FROM pg_namespace
                  WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
        UNION ALL SELECT format('ALTER DATABASE %I RESET ALL', current_database())
    LOOP
        EXECUTE statement;
    END LOOP;
END $$;
CREATE SCHEMA public AUTHORIZATION pg_database_owner;
GRANT USAGE ON SCHEMA public TO PUBLIC;
SELECT pg_stat_reset();
"""

_FIRST_OID_OF_USERS: Final = 16384
_LEFT_OVER: Final = " UNION ALL ".join(
    [
        *(
            f"SELECT '{catalog}' FROM {catalog} WHERE oid >= {_FIRST_OID_OF_USERS}"
            for catalog in (
                "pg_class", "pg_type", "pg_proc", "pg_operator", "pg_cast", "pg_collation", "pg_language", "pg_am",
                "pg_foreign_data_wrapper", "pg_largeobject_metadata", "pg_default_acl", "pg_ts_config",
            )
        ),
        "SELECT 'pg_database' FROM pg_database "
        "WHERE datname = current_database() AND (datacl IS NOT NULL OR datdba <> current_user::regrole)",
        *(
            f"SELECT '{catalog}' FROM {catalog} o LEFT JOIN pg_init_privs i "
            f"ON i.objoid = o.oid AND i.classoid = '{catalog}'::regclass AND i.objsubid = 0 "
            f"WHERE o.{namespace} = 'pg_catalog'::regnamespace AND o.{privileges} IS DISTINCT FROM i.initprivs"
            for catalog, namespace, privileges in (
                ("pg_class", "relnamespace", "relacl"), ("pg_proc", "pronamespace", "proacl"),
            )
        ),
    ]
)  # fmt: skip
"""Objects and privileges of a former test, which emptying leaves there."""


@dataclass(kw_only=True)
class Databases:
    """Those of one server. `lend` gives one that is as new: no object, slot, setting or count of a former test."""

    server: PostgresServer
    _resting: deque[str] = field(default_factory=deque)
    _kept: psycopg.Connection[Any] | None = None
    """A session beside the databases: a new one for each of them would read the catalog anew."""

    def lend(self) -> str:
        """The database's name."""
        if len(self._resting) > _SPARES:
            return self._resting.popleft()
        name = f"test_{next(_numbers)}"
        self.server.create_database(name)
        return name

    def take_back(self, name: str) -> None:
        """With its sessions ended, and its slots and origins dropped, of which a server has few. Dropped if it cannot
        be emptied.
        """
        connection = self._session()
        end_resting(name)
        connection.execute(_END_SESSIONS, [name])
        connection.execute(_DROP_SLOTS, [name])
        connection.execute(_DROP_ORIGINS, [name])
        if self._emptied(name):
            self._resting.append(name)
        else:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()

    def _session(self) -> psycopg.Connection[Any]:
        if self._kept is not None:
            with suppress(psycopg.OperationalError):
                self._kept.execute("SELECT 1")
        if self._kept is None or self._kept.closed:
            self._kept = psycopg.connect(self.server.dsn(), autocommit=True)
        return self._kept

    def _emptied(self, name: str) -> bool:
        try:
            with psycopg.connect(self.server.dsn(name), autocommit=True) as connection:
                connection.execute(_EMPTY)
                return connection.execute(_LEFT_OVER).fetchone() is None
        except psycopg.Error:
            return False
