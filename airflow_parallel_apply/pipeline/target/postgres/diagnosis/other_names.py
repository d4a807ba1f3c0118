"""Tables that the target lacks by the name that rows have, and has by another one that the log knows them by.

Somebody renamed the target's table before the rows of its former name were applied, or not in time for those of its new
one. A table that is made for these rows would keep them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg

from airflow_parallel_apply.pipeline.errors import START_ANEW, ParallelApplyError
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO, Relation
from airflow_parallel_apply.pipeline.model.finding import command_line
from airflow_parallel_apply.pipeline.target.postgres.catalog.renamed_columns import RenamedColumns
from airflow_parallel_apply.pipeline.target.postgres.catalog.table_names import Name, existing, giving_back, giving_name
from airflow_parallel_apply.pipeline.target.postgres.catalog.unfit import (
    MissingTable,
    RefusedStatement,
    RenamedTable,
    creation,
)

Definitions = Callable[[], Sequence[Relation]]
"""All that the log has, the oldest first."""
_MISSING: Final = re.compile(r'relation "(.+)" does not exist')


def name_other_name(
    connection: psycopg.Connection[Any],
    error: ParallelApplyError,
    cause: BaseException | None,
    definitions: Definitions,
) -> None:
    """Give an error of a table that is missing, or of columns that have other names, the way on, after the rollback,
    where the log has them by other names, too. Errors: psycopg's own.
    """
    relation = _missing(error, cause, definitions)
    if relation is None or relation.oid is None:
        return
    logged = definitions()
    own = [one for one in logged if one.oid == relation.oid]
    if isinstance(error, RenamedColumns):
        error.say(is_within=_is_within(own, relation, None, error.seqno))
        return
    name = relation.schema, relation.table
    names = [*dict.fromkeys((one.schema, one.table) for one in reversed(own) if one.name != relation.name)]
    if not names:
        return
    last = {one.oid: (one.schema, one.table) for one in logged}
    if isinstance(error, RenamedTable):
        error.say(is_within=_is_within(own, relation, error.found, error.seqno))
        return
    there = existing(connection, {name, *names, *last.values()})
    if name in there:
        return
    # Another one's that had this name, unless that one has its new name already.
    others = {
        (one.schema, one.table)
        for one in logged
        if one.oid != relation.oid and not (last[one.oid] in there and last[one.oid] != (one.schema, one.table))
    }
    found = next((one for one in names if one in there and one not in others), None)
    if isinstance(error, RefusedStatement) and error.names.get(relation.oid) == found is not None:
        # It has the name that it had at the source then.
        return
    if found is not None:
        is_within = _is_within(own, relation, found, error.seqno)
        error.hint = giving_back(found, giving_name(connection, found, name), is_within=is_within)
    elif last[relation.oid] not in {name, *there}:
        newest = own[-1]
        error.hint = (
            f"The source calls it {newest.name} now: run {creation(newest, connection.info.server_version)} at the "
            f"target, then `{command_line('recopy', [newest.name])}`; then run again."
        )
    elif last[relation.oid] != name:
        make = creation(relation, connection.info.server_version)
        error.hint = (
            f"The source calls it {'.'.join(last[relation.oid])} now, which another table is called at the target. If "
            f"the target never had it, run {make} there; then run again. If it is gone: restore it there, or start "
            f"anew. {START_ANEW}"
        )


def _missing(error: ParallelApplyError, cause: BaseException | None, definitions: Definitions) -> Relation | None:
    """The definition of what is missing."""
    if isinstance(error, MissingTable | RenamedTable | RenamedColumns):
        return error.relation
    if not isinstance(cause, psycopg.errors.UndefinedTable):
        return None
    found = _MISSING.search(cause.diag.message_primary or "")
    if found is None:
        return None
    return next((one for one in definitions() if found[1] in (one.name, one.table)), None)


def _is_within(own: Sequence[Relation], relation: Relation, found: Name | None, seqno: int | None) -> bool:
    """True if rows that came by this seqno have the other name already, or, without one, another definition."""
    return any(
        found in (None, (one.schema, one.table))
        and one.relation_id > relation.relation_id
        and (one.first_seqno or 0) <= (NO_SEQNO if seqno is None else seqno)
        for one in own
    )
