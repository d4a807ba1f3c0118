"""Labels that an enum of the target lacks: the statement that adds the one that a row has."""

from __future__ import annotations

import re
from typing import Final

import psycopg
from psycopg import sql

from airflow_parallel_apply.pipeline.errors import ParallelApplyError
from airflow_parallel_apply.pipeline.model.change import Relation

_REFUSED: Final = re.compile(r'invalid input value for enum (?P<enum>.+?): "(?P<label>.*)"\Z', re.DOTALL)


def say_label(error: ParallelApplyError, cause: psycopg.Error, relation: Relation | None) -> None:
    """Give the error of a value that an enum refused the command that adds it, where the source's column is of the enum
    of that name: the value then is a label, part of the source's definitions, and no row's secret. `relation` None:
    all columns are known to have the source's types.
    """
    refused = _REFUSED.match(cause.diag.message_primary or "")
    if refused is None:
        return
    enum: str | None = refused["enum"]
    if relation is not None:
        names = {column.type_name.removesuffix("[]") for column in relation.columns}
        enum = next((name for name in sorted(names) if f".{name}".endswith(f".{enum}")), None)
    if enum is None:
        return
    add = f"ALTER TYPE {enum} ADD VALUE {sql.Literal(refused['label']).as_string()}"
    error.hint = (
        f"The target's enum lacks a label that the source's has. Run {add} at the target (with BEFORE or AFTER where "
        "the order matters); or, if the source gave an old label that name, rename that one (RENAME VALUE), which "
        "changes older rows too. Then run again."
    )
