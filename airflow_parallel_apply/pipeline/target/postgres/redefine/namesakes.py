"""Refuses DDL that was sent where its names mean other tables or columns here than at the source, or where it reads
columns of other types.

The target follows a rename, or another type, that was not sent with the next row. DDL that is sent before that row
meets what has the name here by then, or nothing: it would drop another column than the source dropped, or give another
one other values. The log has the names and types of the moment when the statement was sent, as the source's event
trigger told them. They are compared behind the last statement that was sent under the same ones; what is dropped,
behind each. Where a table or column has another name here, and the statements have such a name, they are undone.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from airflow_parallel_apply.pipeline.errors import PlanError
from airflow_parallel_apply.pipeline.model.change import Renaming
from airflow_parallel_apply.pipeline.model.finding import command_line, listed
from airflow_parallel_apply.pipeline.model.sent_ddl import (
    COMPUTES,
    NamesThen,
    computes,
    generates,
    has_word,
    pattern_of,
    renames_type,
    shown_ddl,
    statements,
    unquoted,
    written,
)
from airflow_parallel_apply.pipeline.target.postgres.catalog.inherited import heirs, owner_of_column
from airflow_parallel_apply.pipeline.target.postgres.catalog.renamed_columns import renaming
from airflow_parallel_apply.pipeline.target.postgres.catalog.search_path import without_search_path
from airflow_parallel_apply.pipeline.target.postgres.catalog.table_names import Name, renaming_statements
from airflow_parallel_apply.pipeline.target.postgres.redefine.newer_copies import newer_copies
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.pipeline.target.steps import Statement
from airflow_parallel_apply.postgres.generated_text import as_taken, definition_of, expression_of
from airflow_parallel_apply.postgres.quoting import quoted

_RENAMES: Final = re.compile("rename", re.IGNORECASE)
_CALLS: Final = re.compile(
    r"(?:^|;)(?:\s|--[^\n]*\n|/\*.*?\*/)*(?:select|with|call)\b"
    r"|\b(?:perform|call|execute(?!\s+(?:function|procedure|on)\b))\b",
    re.IGNORECASE | re.DOTALL,
)
"""Calls of functions, which may alter anything without naming it."""
_VIRTUAL: Final = "v"


class NotedTable(NamedTuple):
    """A table here: the names of its columns by the source's numbers, and the types of all by their names, or what
    computes them. `above`: the tables that it inherits from.
    """

    name: Name
    columns: dict[int, str]
    types: dict[str, str]
    above: tuple[Name, ...]

    @property
    def computed(self) -> list[str]:
        """The names of the columns that are computed."""
        return [name for name, text in self.types.items() if expression_of(text)]


@dataclass(frozen=True, slots=True)
class _Texts:
    """Those that a transaction has sent, and their statements."""

    texts: Sequence[str]
    statements: Sequence[str]

    @classmethod
    def of(cls, step: Statement) -> _Texts:
        texts = [written(text) for text in (step.text, *step.beside)]
        # What builds a statement has parts of it in several ones.
        parts = [one for text in texts for one in ([text] if _CALLS.search(text) else statements(text))]
        return cls(*([unquoted(text) for text in found] for found in (texts, parts)))

    @property
    def call(self) -> bool:
        """True if one may alter what it does not name."""
        return any(_CALLS.search(text) for text in self.texts)

    @property
    def compute(self) -> bool:
        """True if one may give rows other values, by others of theirs."""
        return any(map(computes, self.statements))

    @property
    def generate(self) -> bool:
        """The same of a column that is generated: it reads none of its kind."""
        return any(map(generates, self.statements))

    def rename_type(self, before: str, now: str) -> bool:
        """True if one gives a type another name."""
        return any(renames_type(text, before, now) for text in self.texts)

    def have(self, name: str) -> bool:
        """True if a column's name is among their words."""
        return any(has_word(text, name) for text in self.texts)

    def have_table(self, name: Name) -> bool:
        """The same of a table's, unless with another schema."""
        words = rf"{_table_words(name)}(?!\w)"
        return any(re.search(words, text, re.IGNORECASE) for text in self.texts)

    def read_rows(self, name: Name) -> bool:
        """True if a USING may read a table's rows as a whole: what is in them need not be named."""
        words = rf"{COMPUTES.pattern}.*{_table_words(name)}(?!\w|\s*\.\s*\w)"
        return any(re.search(words, text, COMPUTES.flags) for text in self.statements)


@dataclass(frozen=True, slots=True)
class _Pair:
    """A table here, and the source's when the transaction's `texts` were sent. `dropped`: the numbers of the columns
    that the statement has dropped here, under the names that they had. `is_last`: no other one follows that was sent
    under the same names; before it, the names here need not be the source's.
    """

    here: NotedTable
    then: NamesThen
    texts: _Texts
    dropped: frozenset[int]
    is_dropped: bool
    is_last: bool

    @property
    def is_elsewhere(self) -> bool:
        """True if the statement may have met the table, or missed it, by a name that it has on one side only."""
        if self.then.table is None or self.then.table == self.here.name:
            return False
        is_named = any(map(self.texts.have_table, (self.here.name, self.then.table)))
        return self.is_dropped or (self.is_last and (is_named or self.texts.call))

    @property
    def other_columns(self) -> list[str]:
        """The names here of the columns of which the same holds."""
        here, then = self.here.columns, self.then.columns
        numbers = {name: number for number, name in here.items()}
        met = {here[number]: None for number in self.dropped if then.get(number, here[number]) != here[number]}
        for number, name in then.items() if self._is_named else ():
            is_anothers, is_renamed = numbers.get(name, number) != number, here.get(number, name) != name
            if (is_anothers or is_renamed) and (self._have(name) or (self.texts.call and is_anothers)):
                met |= {own: None for own in (name, here.get(number)) if own in numbers}
        return [*met]

    @property
    def other_types(self) -> list[tuple[str, str]]:
        """The columns that a USING or an expression reads and that are others here, with what they were at the source:
        of which type, or dropped.
        """
        if not (self._is_named and (self.texts.compute or self.texts.generate)):
            return []
        names = {number: self.here.columns.get(number, self.then.columns[number]) for number in self.then.types}
        found = [(names[number], type_name) for number, type_name in self.then.types.items()]
        met = [one for one in found if self._has_other_type(*one) and self._read(one[0])]
        return met + [(name, "dropped") for name in self._surplus] if self._reads_rows else met

    def _has_other_type(self, name: str, then: str) -> bool:
        """True if a column has another type here, unless that is the one which the statements gave another name."""
        here = self.here.types.get(name, "")
        if expression_of(here) and not self.texts.compute:
            # No expression reads it.
            return False
        return here != then and not self.texts.rename_type(then, here)

    def _read(self, name: str) -> bool:
        """True if a statement, or what it reads and is computed, may read a column."""
        types = self.here.types
        read = (expression_of(types[one]) for one in self.here.computed if one != name and self.texts.have(one))
        return self._have(name) or any(has_word(text, name) for text in read)

    @property
    def _surplus(self) -> Iterator[str]:
        """The columns that the source has no more."""
        theirs = self.then.columns
        yield from (name for name in self.here.computed if name not in theirs.values())
        gone = self.here.columns.keys() - theirs.keys() - self.dropped
        yield from (self.here.columns[number] for number in sorted(gone))

    @property
    def _is_named(self) -> bool:
        return self.is_last and (self.texts.call or any(map(self.texts.have_table, self._names)))

    @property
    def _names(self) -> tuple[Name, ...]:
        return self.here.name, *self.here.above

    @property
    def _reads_rows(self) -> bool:
        return any(map(self.texts.read_rows, self._names))

    def _have(self, name: str) -> bool:
        return self.texts.have(name) or self._reads_rows


@contextmanager
def refusing_namesakes(connection: Connection, session: Session, step: Statement) -> Iterator[None]:
    """Around the statement, in its transaction. Errors: `PlanError` where it may have met another table or column than
    at the source, or one of another type; psycopg's own.
    """
    before = noted_tables(connection, session, _oids(step))
    yield
    if before:
        _require_same(connection, session, step, list(_pairs(connection, session, step, before)))


def noted_tables(connection: Connection, session: Session, oids: Iterable[int]) -> dict[int, NotedTable]:
    """The tables that are noted for these oids of the source's. Errors: psycopg's own."""
    here: dict[int, NotedTable] = {}
    wanted = [*oids]
    if not wanted:
        return here
    with without_search_path(connection):
        values = {"pipeline": session.pipeline, "oids": wanted}
        found = connection.execute(statement("applied_tables", "names"), values).fetchall()
    for oid, schema, table, above, number, column, type_name, generated, expression in found:
        found_table = here.setdefault(oid, NotedTable((schema, table), {}, {}, tuple(map(tuple, above))))
        computed = definition_of(type_name, expression, is_virtual=generated == _VIRTUAL) if generated else ""
        found_table.types[column] = computed or type_name
        if number is not None:
            found_table.columns[number] = column
    return here


def _require_same(connection: Connection, session: Session, step: Statement, pairs: Sequence[_Pair]) -> None:
    elsewhere = [pair for pair in pairs if pair.is_elsewhere]
    inside = [pair for pair in pairs if pair.other_columns]
    retyped = [pair for pair in pairs if pair.other_types]
    if not (elsewhere or inside or retyped):
        return
    met = [".".join(pair.here.name) for pair in elsewhere]
    met += [f"{name} of {'.'.join(pair.here.name)}" for pair in inside for name in pair.other_columns]
    what = f"would alter something else at the target: {listed(met)} had another name"
    if not met:
        of = [f"{name} of {'.'.join(pair.here.name)} was {text}" for pair in retyped for name, text in pair.other_types]
        what = f"would compute other values at the target: {listed(of)}"
    tables = _concerned(connection, [*elsewhere, *inside, *retyped], pairs)
    hint = f"`{command_line('recopy', tables)}` copies what is concerned anew; then {step.skipping}."
    if not retyped and _is_mended_by_renames(pairs, step):
        hint = f"Run {'; '.join(_renames(connection, pairs))} at the target, then run again. Or: {hint}"
    raise PlanError(
        f"the source sent DDL that {what} at the source by then, and what is altered and not sent is followed with the "
        f"next row only: {shown_ddl(step.text)}",
        op="ddl",
        pipeline=session.pipeline,
        table=tables[0],
        hint=hint,
    )


def _table_words(name: Name) -> str:
    """The pattern of a table's name, with its schema and database or without."""
    return rf"(?<![.\w])(?:(?:\w+\.)?{pattern_of(name[0])}\.)?{pattern_of(name[1])}"


def _oids(step: Statement) -> list[int]:
    return [one.oid for one in step.names]


def _pairs(
    connection: Connection, session: Session, step: Statement, before: Mapping[int, NotedTable]
) -> Iterator[_Pair]:
    """As they are behind the statement; a table or column that it dropped as it was `before`. Without tables that were
    copied from a later moment: `leaving_newer_copies` looks at those.
    """
    after, texts = noted_tables(connection, session, _oids(step)), _Texts.of(step)
    newer = newer_copies(connection, session, step.end_offset)
    version = connection.info.server_version
    for then in step.names:
        if then.oid in before:
            types = {number: as_taken(text, version) for number, text in then.types.items()}
            was = before[then.oid]
            now = after.get(then.oid, was)
            if ".".join(now.name) not in newer:
                yield _Pair(
                    now._replace(columns={**was.columns, **now.columns}),
                    replace(then, types=types),
                    texts,
                    dropped=frozenset(was.columns.keys() - now.columns.keys()),
                    is_dropped=then.oid not in after,
                    is_last=step.is_last,
                )


def _concerned(connection: Connection, met: Iterable[_Pair], pairs: Iterable[_Pair]) -> list[str]:
    """The names at the source of these tables, and of those that inherit from them."""
    names = {pair.here.name: pair.then.table or pair.here.name for pair in pairs}
    found = dict.fromkeys(one for pair in met for one in (pair.here.name, *heirs(connection, *pair.here.name)))
    return [".".join(names.get(one, one)) for one in found]


def _is_mended_by_renames(pairs: Iterable[_Pair], step: Statement) -> bool:
    """True if the target only has to have the names that are known. What the statement renames or drops, or the source
    dropped before, had another one before it; and rows and statements before it in its transaction, which come again,
    mean the names of their moment.
    """
    are_known = all(pair.here.columns.keys() <= pair.then.columns.keys() for pair in pairs if pair.other_columns)
    return are_known and not step.beside and not step.is_behind_rows and not _RENAMES.search(step.text)


def _renames(connection: Connection, pairs: Sequence[_Pair]) -> Iterator[str]:
    """The statements that give the tables and their columns the names that they had at the source then. An inherited
    column gets its name in the table above.
    """
    names = [(pair.here.name, pair.then.table) for pair in pairs]
    tables = tuple((old, new) for old, new in names if new is not None and new != old)
    if tables:
        for one in renaming_statements(Renaming(pairs=tables, is_certain=True)):
            yield one.as_string(None)
    told = {pair.here.name for pair in pairs}
    wanted: defaultdict[Name, dict[str, str]] = defaultdict(dict)
    held: defaultdict[Name, set[str]] = defaultdict(set)
    for pair in pairs:
        here, theirs = pair.here, pair.then.columns
        for number, own in here.columns.items():
            if theirs.get(number, own) != own:
                above = owner_of_column(connection, quoted(*here.name), quoted(own))
                if above not in told:
                    name = above or pair.then.table or here.name
                    wanted[name][own] = theirs[number]
                    held[name].update(here.columns.values())
    for name, others in wanted.items():
        for one in renaming([(name, own, new) for own, new in others.items()], [*held[name]]):
            yield one.as_string(None)
