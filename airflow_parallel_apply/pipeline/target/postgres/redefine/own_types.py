"""Refuses a USING or SET EXPRESSION that was sent where it reads columns that have types of their own here, or that
came and went at the source, so that nobody knows what they held, or whole rows that have other columns here.

A column of the target may have another type than the source's as long as both print its values alike, as `numeric` and
`integer` do. What an expression makes of them need not be alike: `a / 2` is a whole number at the source alone. A mere
cast of the column itself goes by the text, of which the next definition takes care.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
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
from airflow_parallel_apply.pipeline.model.value_type import ValueKind
from airflow_parallel_apply.pipeline.target.postgres.catalog.fit import (
    computes_alike,
    differ_in_limits,
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
_END: Final = r"(?P<expression>.*?)(?=,\s*(?:alter|add|drop|set)\b|$)"
_USING: Final = re.compile(rf"{_RETYPES}(?P<type>(?:(?!\balter\b).)*?)\busing\b{_END}", re.IGNORECASE | re.DOTALL)
_GENERATED: Final = re.compile(rf"\bset\s+expression\s+as\b{_END}", re.IGNORECASE | re.DOTALL)
_STRING: Final = re.compile(r"""(?<![\w$])[eE]'(?:[^'\\]|\\.|'')*'|'[^']*'""")
_BUILDS: Final = re.compile(r"\bexecute\b", re.IGNORECASE)
_INTEGERS: Final = {16: "smallint", 32: "integer", 64: "bigint"}
"""By their sizes in bits."""
_ARRAY: Final = "[]"
_OF_A_SCHEMA: Final = "."
"""In the name of each type that somebody made."""
_ZONE: Final = r"(?:\s+with(?:out)?\s+time\s+zone)?"
_TYPE: Final = rf"[\w.]+(?:\s+(?:varying|precision))?{_ZONE}(?:\s*\([\d,\s]*\))?{_ZONE}(?:\s*\[\d*\])*"
_CASTS: Final = re.compile(rf"(?:::|\bas\b)\s*({_TYPE})", re.IGNORECASE)
_TEXTS: Final = ("text", "varchar", "charactervarying")


class _Own(NamedTuple):
    """A column of a definition that has another type here. `names`: all that a statement may call it. `is_altered`: it
    had another type at the source behind the statement than by the definition.
    """

    relation: Relation
    column: Column
    here: str
    names: frozenset[str]
    is_altered: bool


def require_types(connection: Connection, session: Session, step: Statement) -> PlanError | None:
    """Before the statement is run. Returns the error for one of its columns that has a type of its own here, should the
    server refuse to cast that. Errors: `PlanError` that names the column; psycopg's own.
    """
    retyped = {unquoted(found["column"]).lower() for one in statements(step.text) for found in _RETYPED.finditer(one)}
    read = [*_expressions(step.text)] if step.defined or step.assumed else []
    if not (read or (retyped and step.defined)):
        return None
    newer = newer_copies(connection, session, step.end_offset)
    for relation, name in step.assumed:
        is_read = any(has_word(one, word) for one in read for word in (name, relation.table))
        if is_read and has_word(step.text, relation.table) and relation.name not in newer:
            raise _unknown(session, step, relation, name)
    refused = None
    for table in _meant(connection, session, step, read, newer):
        for own in _own_types(connection, session, table):
            is_retyped = any(unquoted(name).lower() in retyped for name in own.names)
            is_before = not own.is_altered or is_retyped
            is_read = table.is_read_whole or any(has_word(one, name) for one in read for name in own.names)
            if is_before and is_read:
                raise _refused(connection, session, step, own)
            if is_retyped:
                refused = refused or _refused(connection, session, step, own, what="does not work")
        if table.is_read_whole and (surplus := table.surplus):
            raise _surplus(session, step, table, surplus)
    return refused


def _expressions(text: str) -> Iterator[str]:
    """The expressions of a text: of each USING that does more than cast its column, and of each SET EXPRESSION. Those
    in strings, too, which may be run; what ends an expression ends none in a string.
    """
    for statement in statements(text):
        for shown in dict.fromkeys((statement, _STRING.sub(lambda one: "'" * len(one[0]), statement))):
            for found in _GENERATED.finditer(shown):
                yield unquoted(statement[found.start("expression") : found.end("expression")])
            for found in _USING.finditer(shown):
                column = pattern_of(found["column"])
                expression = unquoted(statement[found.start("expression") : found.end("expression")])
                cast = rf"(?:[(\s]|cast\s*\()*{column}(?:\s*\)|\s*::\s*{_TYPE}|\s+as\s+{_TYPE})*\s*"
                if re.fullmatch(cast, expression, re.IGNORECASE) is None or _casts_between(expression, found["type"]):
                    yield expression


def _casts_between(expression: str, wanted: str) -> bool:
    """True if casts to the wanted type go by another one than text."""
    types = ["".join(one.lower().split()) for one in (*_CASTS.findall(expression), unquoted(wanted))]
    return not {*types[:-1]} <= {*_TEXTS, types[-1]}


@dataclass(frozen=True, slots=True)
class _Meant:
    """A table that a statement may be about, as it is here, with its definitions before, and its names at the source
    behind the statement. `is_read_whole`: an expression may read its rows as a whole.
    """

    here: NotedTable
    definitions: Sequence[Relation]
    then: NamesThen | None
    is_read_whole: bool

    @property
    def surplus(self) -> str | None:
        """The name of a column that rows have here alone, or in another place than at the source; None: of none."""
        computed = {*(self.definitions[-1].computed or ()), *(name for name, _ in self.definitions[-1].expressions)}
        # A column that a message has made is noted with the next definition.
        names = [*(self.then.columns.items() if self.then and self.here.columns else ()), *self.here.columns.items()]
        numbers = {name: number for number, name in names}
        last = 0
        for name in self.here.types if numbers else ():
            if name not in numbers and name not in computed:
                return name
            if numbers.get(name, last) < last:
                return name
            last = numbers.get(name, last)
        return None


def _meant(
    connection: Connection, session: Session, step: Statement, read: Sequence[str], newer: Collection[str]
) -> Iterator[_Meant]:
    """The tables, without those that were copied from a later moment: the ones that the statement names, be it by a
    table above them, or any of these columns where it builds what it runs and names none.
    """
    defined: defaultdict[int, list[Relation]] = defaultdict(list)
    for relation in step.defined:
        defined[relation.oid or 0].append(relation)
    then = {one.oid: one for one in step.names}
    named = {oid for oid, ones in defined.items() if _is_named(step.text, _tables(ones[-1], then.get(oid)))}
    wanted = named | {oid for oid, ones in defined.items() if _may_be_read(ones[-1], then.get(oid), read)}
    is_any = not named and any(_BUILDS.search(one) for one in statements(step.text))
    for oid, here in noted_tables(connection, session, wanted).items():
        tables = {here.name[1], *(table for _, table in here.above), *_tables(defined[oid][-1], then.get(oid))}
        if ".".join(here.name) not in newer and (is_any or oid in named or _is_named(step.text, tables)):
            columns = {column.name for column in defined[oid][-1].columns}
            is_read_whole = any(_has_row(one, table) for one in read for table in tables - columns)
            yield _Meant(here, defined[oid], then.get(oid), is_read_whole)


def _tables(relation: Relation, then: NamesThen | None) -> set[str]:
    return {relation.table, *((then.table or ())[1:] if then else ())}


def _is_named(text: str, tables: Iterable[str]) -> bool:
    return any(has_word(text, table) for table in tables)


def _may_be_read(relation: Relation, then: NamesThen | None, read: Iterable[str]) -> bool:
    names = {column.name for column in relation.columns}.union(then.columns.values() if then else ())
    return any(has_word(one, name) for one in read for name in names)


def _has_row(expression: str, table: str) -> bool:
    words = rf"(?<!\w){pattern_of(table)}(?!\w|\s*\.\s*\w)"
    return re.search(words, expression, re.IGNORECASE) is not None


def _own_types(connection: Connection, session: Session, table: _Meant) -> Iterator[_Own]:
    """Those of a table. Not the columns whose type an earlier message has changed since."""
    changed = {name for name, _ in told_types(connection, session, table.definitions[-1])}
    for own in _unlike(table.here, table.definitions, table.then):
        if own.names.isdisjoint(changed):
            yield own


def _unlike(table: NotedTable, definitions: Sequence[Relation], then: NamesThen | None) -> Iterator[_Own]:
    """The columns whose type here is none that one of the definitions has."""
    for column in definitions[-1].columns:
        number, name = column.number or 0, column.name
        names = frozenset({name, table.columns.get(number, name), then.columns.get(number, name) if then else name})
        here = table.types.get(table.columns.get(number, name))
        before = [one for some in definitions for one in some.columns if one.number == column.number]
        is_altered = then is not None and number in then.types
        if here is not None and not (column.generated or any(_is_alike(one, here) for one in before)):
            yield _Own(definitions[-1], column, here, names, is_altered)


def _is_alike(column: Column, here: str) -> bool:
    """True if an expression makes the same of both types, or if they are no servers' own, and one may be the other
    under another name.
    """
    source = column.type_name
    if source.endswith(_ARRAY) and here.endswith(_ARRAY):
        source, here = source.removesuffix(_ARRAY), here.removesuffix(_ARRAY)
    elif _OF_A_SCHEMA in source and column.value.kind is ValueKind.INTEGER:
        source = _INTEGERS.get(column.value.size or 0, source)
    are_made = _OF_A_SCHEMA in source and _OF_A_SCHEMA in here
    is_wider = computes_alike(source, here) or computes_alike(here, source)
    return are_made or is_wider or differ_in_limits(source, here)


def _surplus(session: Session, step: Statement, table: _Meant, column: str) -> PlanError:
    name = table.definitions[-1].name
    return PlanError(
        f"the source sent DDL that would compute other values at the target: it reads whole rows of {name}, which have "
        f"{column} there alone, or elsewhere: {shown_ddl(step.text)}",
        op="ddl",
        pipeline=session.pipeline,
        table=name,
        column=column,
        hint=f"`{command_line('recopy', [name])}` copies the table anew; then {step.skipping}.",
    )


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


def _refused(
    connection: Connection, session: Session, step: Statement, own: _Own, what: str = "would compute other values"
) -> PlanError:
    relation, column = own.relation, own.column
    (table,) = find_tables(connection, [relation])
    retype = "" if table is None else "; ".join(retyping(table, relation.columns.index(column)))
    copy = f"`{command_line('recopy', [relation.name])}` copies the table anew; then {step.skipping}."
    return PlanError(
        f"the source sent DDL that {what} at the target: {column.name} of {relation.name} is "
        f"{own.here} there and {column.type_name} at the source: {shown_ddl(step.text)}",
        op="ddl",
        pipeline=session.pipeline,
        table=relation.name,
        column=column.name,
        hint=f"Run {retype} at the target, then run again. Or: {copy}" if retype else copy,
    )
