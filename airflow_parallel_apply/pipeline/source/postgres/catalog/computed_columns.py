"""The columns that the source computes and does not send, as a relation message's moment has them: no message names
them, and the catalog has those of now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.source.postgres.catalog.shape import LivingColumn, Shape


def computed_columns(
    shape: Shape, named: Sequence[tuple[str, str]], numbers: Sequence[int | None], known: Relation | None
) -> dict[int, LivingColumn]:
    """The columns that are computed and not sent, by number. A new one counts once the message has all columns that
    were created before it, under their present names, because its expression uses these.
    """
    there = {number: name for number, (name, _) in zip(numbers, named, strict=True)}
    before = known.computed if known is not None else None
    return {
        number: column
        for number, column in shape.columns.items()
        if column.generated
        and number not in there
        and (
            before is None
            or column.name in before
            or all(there.get(one) == shape.columns[one].name for one in shape.plain if one < number)
        )
    }


def expressions_of_columns(
    shape: Shape, named: Sequence[tuple[str, str]], numbers: Sequence[int | None], known: Relation | None
) -> tuple[tuple[str, str], ...]:
    """The expression of each generated column. The catalog has it with the present names; if the message has other
    names, the expression in the log is used, if there is one. For a column that is gone by now only the log has it,
    under the names of that time: after a renaming it is unknown.
    """
    there = {number: name for number, (name, _) in zip(numbers, named, strict=True)}
    logged = dict(known.expressions) if known is not None and _are_named_as(known, there) else {}
    if any(there.get(number) != shape.columns[number].name for number in shape.plain):
        return tuple(logged.items())
    found = ((one.name, one.definition or logged.get(one.name)) for one in shape.columns.values() if one.generated)
    return tuple((name, definition) for name, definition in found if definition)


def _are_named_as(known: Relation, there: Mapping[int | None, str]) -> bool:
    """True if a message's columns have the names that the log has for them."""
    return all(
        column.number is None or there.get(column.number, column.name) == column.name for column in known.columns
    )
