"""Staging tables: one for each relation and Spark attempt, typed as the target's columns, in the pipelines' database.

An attempt's table is made before its rows are loaded, and each commits by itself: what an attempt leaves that nobody
acknowledged is nobody's, and whoever takes the channel next drops it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Final

from airflow_parallel_apply.pipeline.errors import StagingLost
from airflow_parallel_apply.pipeline.target.mariadb.naming import (
    DATABASE,
    StagingOwner,
    claim_tag,
    owner_of,
    staging_prefix,
)
from airflow_parallel_apply.pipeline.target.mariadb.quoting import listed, quoted
from airflow_parallel_apply.pipeline.target.mariadb.session import Session
from airflow_parallel_apply.pipeline.target.mariadb.tables import TargetColumn, TargetTable

_LETTERS: Final = 64
"""The length of a column's name at most. None of the source's is as long."""

OPERATION: Final = "pa:operation".ljust(_LETTERS, ":")
"""I, U or D; R of a row that is taken out of its table and put back."""

UNSENT: Final = "pa:unsent".ljust(_LETTERS, ":")
"""One character a column of the relation, "1" where the old row's value stays; NULL where all was sent."""

STORED: Final = "ENGINE = InnoDB ROW_FORMAT = DYNAMIC"
"""How tables are kept: in other formats, one of which may be the server's default, no key has more than 767 bytes."""

NUMBER: Final = "pa:number".ljust(_LETTERS, ":")
"""Numbers the rows of a table whose rows have no key."""

MOST_COLUMNS: Final = 1017 - len((OPERATION, UNSENT, NUMBER))
"""Columns of a relation for which InnoDB makes a staging table."""


def create_staging(staging: str, table: TargetTable) -> str:
    """With the target's types and collations, without its defaults and constraints. By the key, where there is one."""
    relation = table.relation
    keys = [relation.columns[index].name for index in relation.key_indexes]
    lines = [f"{quoted(OPERATION)} char(1) CHARACTER SET ascii NOT NULL"]
    for column in relation.columns:
        found = table.columns[column.name]
        lines.append(f"{quoted(column.name)} {found.plain_type} {_empty(found) if column.key else 'NULL DEFAULT NULL'}")
    lines.append(f"{quoted(UNSENT)} text CHARACTER SET ascii NULL")
    if not keys:
        lines.append(f"{quoted(NUMBER)} bigint NOT NULL AUTO_INCREMENT")
        keys = [NUMBER]
    lines.append(f"PRIMARY KEY ({listed(keys)})")
    made = f"CREATE TABLE {quoted(DATABASE, staging)} ({', '.join(lines)}) {STORED}"
    return f"{made} COMMENT = '{_shape(table)}'"


def require_shape(session: Session, staging: str, table: TargetTable) -> None:
    """Require a table's columns to be as they were when rows were staged for it: in others values are kept in another
    form, or NULL is. Errors: `StagingLost`; the driver's own.
    """
    query = "SELECT TABLE_COMMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
    if session.row(query, [DATABASE, staging]) != (_shape(table),):
        raise StagingLost(
            "the target's table was altered since its rows were staged",
            table=table.relation.name,
            hint="The unit is staged again.",
        )


def _empty(key: TargetColumn) -> str:
    """The rest of a key column's definition, which admits no NULL. A timestamp without a default becomes the time of
    each update where the server's `explicit_defaults_for_timestamp` is off, as it is by default before MariaDB 10.10.
    """
    return "NOT NULL DEFAULT '2000-01-01 00:00:00'" if key.type == "timestamp" else "NOT NULL"


def _shape(table: TargetTable) -> str:
    columns = [table.columns[column.name] for column in table.relation.columns]
    return hashlib.sha256(repr(columns).encode()).hexdigest()


def drop_staging(session: Session, names: Iterable[str]) -> None:
    """Drop staging tables that another holder of a channel may be dropping, too. Commits whatever is under way.
    Errors: the driver's own.
    """
    found = ", ".join(quoted(DATABASE, name) for name in names)
    if found:
        session.execute(f"DROP TABLE IF EXISTS {found}")


def drop_foreign_staging(session: Session, is_foreign: Callable[[StagingOwner], bool] | None = None) -> None:
    """Drop those of the pipeline's staging tables that are somebody else's (None: all). Their sessions must have been
    ended. Errors: the driver's own.
    """
    prefix = staging_prefix(session.pipeline)
    found = session.rows(
        "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND LEFT(TABLE_NAME, %s) = %s",
        [DATABASE, len(prefix), prefix],
    )
    owners = [(str(name), owner_of(str(name))) for (name,) in found]
    drop_staging(
        session, [name for name, owner in owners if owner is not None and (is_foreign is None or is_foreign(owner))]
    )


def foreign_to(channel: int | None, token: str, from_group: int | None = None) -> Callable[[StagingOwner], bool]:
    """Tell what former holders of a channel (None: of all) staged, for whoever takes it under a token: not what is
    staged for groups, but for those before `from_group` (None: for any), where all channels are taken.
    """
    claim = claim_tag(token)

    def is_foreign(owner: StagingOwner) -> bool:
        if owner.group is not None:
            return channel is None and (from_group is None or owner.group < from_group)
        return owner.claim != claim and (channel is None or owner.channel in (None, channel))

    return is_foreign
