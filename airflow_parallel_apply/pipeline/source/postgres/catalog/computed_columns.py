"""The columns that the source computes and does not send, as a relation message's moment has them: no message names
them, and the catalog has those of now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.sent_ddl import has_word
from airflow_parallel_apply.pipeline.model.sighting import Sighting
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
    shape: Shape,
    named: Sequence[tuple[str, str]],
    numbers: Sequence[int | None],
    known: Relation | None,
    told: Sighting | None,
) -> tuple[tuple[str, str], ...]:
    """The expression of each generated column, as the source told it. Where it told nothing, the catalog has it with
    the present names; if it has one that the message's column does not have, the expression in the log is used, if
    there is one. For a column that is gone by now only the log has it then, under the names of that time: after a
    renaming it is unknown.
    """
    there = {number: name for number, (name, _) in zip(numbers, named, strict=True)}
    if told is not None and (found := _told_expressions(told, there)) is not None:
        return found
    logged = dict(known.expressions) if known is not None and _are_named_as(known, there) else {}
    others = [shape.columns[number].name for number in shape.plain if there.get(number) != shape.columns[number].name]
    now = {
        one.name: one.definition
        for one in shape.columns.values()
        if one.definition and not any(has_word(one.definition, name) for name in others)
    }
    names = (*(logged if others else ()), *(one.name for one in shape.columns.values() if one.generated))
    definitions = ((name, now.get(name) or logged.get(name)) for name in dict.fromkeys(names))
    return tuple((name, definition) for name, definition in definitions if definition)


def _told_expressions(told: Sighting, there: Mapping[int | None, str]) -> tuple[tuple[str, str], ...] | None:
    """Those of a sighting after which the source reports each change, if a message's columns are exactly its; None
    where they are not, or an expression is lacking.
    """
    computed = {*told.generated, *(number for number, _ in told.names if number in told.absent)}
    named = {number: name for number, name in told.names if number not in computed}
    if not named or named != {number: name for number, name in there.items() if number not in computed}:
        return None
    expressions = dict(told.expressions)
    if not computed <= expressions.keys():
        return None
    return tuple((name, expressions[number]) for number, name in told.names if number in computed)


def _are_named_as(known: Relation, there: Mapping[int | None, str]) -> bool:
    """True if a message's columns have the names that the log has for them."""
    return all(
        column.number is None or there.get(column.number, column.name) == column.name for column in known.columns
    )
