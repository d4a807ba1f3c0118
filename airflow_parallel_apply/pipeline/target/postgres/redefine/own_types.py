"""Refuses a USING or SET EXPRESSION that was sent where it reads columns that have types of their own here, or that
came and went at the source, so that nobody knows what they held.

A column of the target may have another type than the source's as long as both print its values alike, as `numeric` and
`integer` do. What an expression makes of them need not be alike: `a / 2` is a whole number at the source alone. A mere
cast of the column itself goes by the text, of which the next definition takes care.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from airflow_parallel_apply.pipeline.errors import PlanError
from airflow_parallel_apply.pipeline.model.change import Column, Relation
from airflow_parallel_apply.pipeline.model.finding import command_line
from airflow_parallel_apply.pipeline.model.sent_ddl import (
    NamesThen,
    has_word,
    pattern_of,
    shown_ddl,
    statements,
    unquoted,
)
from airflow_parallel_apply.pipeline.target.postgres.catalog.fit import (
    computes_alike,
    differ_in_limits,
    name_of_built_in,
)
from airflow_parallel_apply.pipeline.target.postgres.catalog.retyping import retyping
from airflow_parallel_apply.pipeline.target.postgres.catalog.tables import find_tables
from airflow_parallel_apply.pipeline.target.postgres.redefine.namesakes import NotedTable, noted_tables
from airflow_parallel_apply.pipeline.target.postgres.redefine.newer_copies import newer_copies
from airflow_parallel_apply.pipeline.target.postgres.redefine.told_types import told_types
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.steps import Statement

_RETYPES: Final = r"""\balter\s+(?:column\s+)?(?P<column>"(?:[^"]|"")+"|[\w$]+)\s+(?:set\s+data\s+)?type\b"""
_RETYPED: Final = re.compile(_RETYPES, re.IGNORECASE)
_USING: Final = re.compile(
    rf"{_RETYPES}(?:(?!\balter\b).)*?\busing\b(?P<expression>.*?)(?=,\s*(?:alter|add|drop|set)\b|$)",
    re.IGNORECASE | re.DOTALL,
)
_GENERATED: Final = re.compile(
    r"\bset\s+expression\s+as\b(?P<expression>.*?)(?=,\s*(?:alter|add|drop|set)\b|$)", re.IGNORECASE | re.DOTALL
)
_ZONE: Final = r"(?:\s+with(?:out)?\s+time\s+zone)?"
_TYPE: Final = rf"[\w.]+(?:\s+(?:varying|precision))?{_ZONE}(?:\s*\([\d,\s]*\))?{_ZONE}(?:\s*\[\d*\])*"


class _Own(NamedTuple):
    """A column of a definition that has another type here. `names`: all that a statement may call it. `is_altered`: it
    had another type at the source behind the statement than by the definition.
    """

    relation: Relation
    column: Column
    here: str
    names: frozenset[str]
    is_altered: bool


def require_types(connection: Connection, session: Session, step: Statement) -> None:
    """Before the statement is run. Errors: `PlanError` that names the column; psycopg's own."""
    read = [*_expressions(step.text)] if step.defined or step.assumed else []
    newer = newer_copies(connection, session, step.end_offset) if read else {}
    for relation, name in step.assumed:
        is_read = any(has_word(one, word) for one in read for word in (name, relation.table))
        if is_read and relation.name not in newer:
            raise _unknown(session, step, relation, name)
    retyped = {unquoted(found["column"]).lower() for one in statements(step.text) for found in _RETYPED.finditer(one)}
    for own in _own_types(connection, session, step) if read else ():
        is_before = not own.is_altered or any(unquoted(name).lower() in retyped for name in own.names)
        if is_before and any(has_word(one, name) for one in read for name in (*own.names, own.relation.table)):
            raise _refused(connection, session, step, own)


def _expressions(text: str) -> Iterator[str]:
    """The expressions of a text: of each USING that does more than cast its column, and of each SET EXPRESSION."""
    for statement in statements(text):
        yield from (unquoted(found["expression"]) for found in _GENERATED.finditer(statement))
        for found in _USING.finditer(statement):
            column, expression = pattern_of(found["column"]), unquoted(found["expression"])
            cast = rf"(?:[(\s]|cast\s*\()*{column}(?:\s*\)|\s*::\s*{_TYPE}|\s+as\s+{_TYPE})*\s*"
            if re.fullmatch(cast, expression, re.IGNORECASE) is None:
                yield expression


def _own_types(connection: Connection, session: Session, step: Statement) -> Iterator[_Own]:
    """Those of the statement's tables. Not the columns whose type an earlier message has changed since, nor those of
    tables that were copied from a later moment.
    """
    defined: defaultdict[int, list[Relation]] = defaultdict(list)
    for relation in step.defined:
        defined[relation.oid or 0].append(relation)
    then = {one.oid: one for one in step.names}
    newer = newer_copies(connection, session, step.end_offset)
    for oid, table in noted_tables(connection, session, defined).items():
        if ".".join(table.name) not in newer:
            changed = {name for name, _ in told_types(connection, session, defined[oid][-1])}
            for own in _unlike(table, defined[oid], then.get(oid)):
                if own.names.isdisjoint(changed):
                    yield own


def _unlike(table: NotedTable, definitions: Sequence[Relation], then: NamesThen | None) -> Iterator[_Own]:
    """The columns whose type here is none that one of the definitions has."""
    for column in definitions[-1].columns:
        number, name = column.number or 0, column.name
        names = frozenset({name, table.columns.get(number, name), then.columns.get(number, name) if then else name})
        here = table.types.get(table.columns.get(number, name))
        types = [one.type_name for some in definitions for one in some.columns if one.number == column.number]
        is_altered = then is not None and number in then.types
        if here is not None and not (column.generated or any(_is_alike(one, here) for one in types)):
            yield _Own(definitions[-1], column, here, names, is_altered)


def _is_alike(source: str, here: str) -> bool:
    """True if an expression makes the same of both types, or if that cannot be told."""
    is_unknown = None in (name_of_built_in(source), name_of_built_in(here))
    is_wider = computes_alike(source, here) or computes_alike(here, source)
    return is_unknown or is_wider or differ_in_limits(source, here)


def _unknown(session: Session, step: Statement, relation: Relation, column: str) -> PlanError:
    return PlanError(
        f"the source sent DDL that would compute other values at the target: the log does not tell what older rows of "
        f"{relation.name} held in {column}: {shown_ddl(step.text)}",
        op="ddl",
        pipeline=session.pipeline,
        table=relation.name,
        column=column,
        hint=f"`{command_line('recopy', [relation.name])}` copies the table anew; then {step.skipping}.",
    )


def _refused(connection: Connection, session: Session, step: Statement, own: _Own) -> PlanError:
    relation, column = own.relation, own.column
    (table,) = find_tables(connection, [relation])
    retype = "" if table is None else "; ".join(retyping(table, relation.columns.index(column)))
    copy = f"`{command_line('recopy', [relation.name])}` copies the table anew; then {step.skipping}."
    return PlanError(
        f"the source sent DDL that would compute other values at the target: {column.name} of {relation.name} is "
        f"{own.here} there and {column.type_name} at the source: {shown_ddl(step.text)}",
        op="ddl",
        pipeline=session.pipeline,
        table=relation.name,
        column=column.name,
        hint=f"Run {retype} at the target, then run again. Or: {copy}" if retype else copy,
    )
