"""Commands for a table of the target that has no unique index over exactly the source's key: `making_key`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_parallel_apply.pipeline.model.finding import command_line
from airflow_parallel_apply.postgres.quoting import quoted, suffixed

if TYPE_CHECKING:
    from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import TargetTable

_ASIDE: Final = "_before"


def making_key(table: TargetTable, pipeline: str | None = None) -> tuple[tuple[str, ...], str]:
    """Return the commands, and what is to be done behind them, or where they fail. `pipeline`: see `command_line`.

    A unique index of a partitioned table contains the columns by which it is partitioned: where the key lacks some of
    those, another table has to take its place.
    """
    relation = table.relation
    name = quoted(relation.schema, relation.table)
    key = ", ".join(quoted(name) for name in relation.key_names)
    make = f"CREATE UNIQUE INDEX ON {name} ({key})"
    copying = f"`{command_line('recopy', [relation.name], pipeline)}` copies the table anew"
    if not table.is_partitioned or _can_be_indexed(table):
        return (make,), (
            f"Should it fail for a value that is there twice, empty the table and run it again; then {copying}"
        )
    aside = suffixed(relation.table, _ASIDE)
    like = f"LIKE {quoted(relation.schema, aside)} INCLUDING DEFAULTS INCLUDING GENERATED INCLUDING IDENTITY"
    return (
        f"ALTER TABLE {name} RENAME TO {quoted(aside)}",
        f"CREATE TABLE {name} ({like})",
        make,
    ), (
        "The target's table is partitioned by columns that are not in the key, so it can have no such index. Then "
        f"{copying}"
    )


def _can_be_indexed(table: TargetTable) -> bool:
    key = {*table.relation.key_names}
    return {*table.partitioned_by} <= key
