"""Refuses DDL that was sent where its names mean other tables or columns here than at the source.

The target follows a rename that was not sent with the next row. DDL that is sent before that row meets what has the
name here by then: it would drop another column than the source dropped, or give other values to another one. The log
has the names behind the statement, as the source's event trigger told them. So where one of the target's tables or
columns has a name then that another one has at the source, the statement may have met the wrong one, and is undone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from airflow_parallel_apply.pipeline.errors import PlanError
from airflow_parallel_apply.pipeline.model.change import Renaming
from airflow_parallel_apply.pipeline.model.finding import command_line, listed
from airflow_parallel_apply.pipeline.model.sent_ddl import NamesThen, shown_ddl
from airflow_parallel_apply.pipeline.target.postgres.catalog.inherited import owner_of_column
from airflow_parallel_apply.pipeline.target.postgres.catalog.renamed_columns import renaming
from airflow_parallel_apply.pipeline.target.postgres.catalog.search_path import without_search_path
from airflow_parallel_apply.pipeline.target.postgres.catalog.table_names import Name, renaming_statements
from airflow_parallel_apply.pipeline.target.postgres.redefine.newer_copies import newer_copies
from airflow_parallel_apply.pipeline.target.postgres.session import Connection, Session
from airflow_parallel_apply.pipeline.target.postgres.statements import statement
from airflow_parallel_apply.pipeline.target.steps import Statement
from airflow_parallel_apply.postgres.quoting import quoted

_RENAMES: Final = re.compile("rename", re.IGNORECASE)


class _Table(NamedTuple):
    """A table here: the names of its columns by the source's numbers, and of those whose numbers are not known."""

    name: Name
    columns: dict[int, str]
    others: set[str]


@dataclass(frozen=True, slots=True)
class _Pair:
    """A table here, with the names of its columns by the source's numbers, and the source's behind the transaction's
    last statement. `others`: names of columns whose numbers are not known, as of those that were sent and have had no
    row. `dropped`: the numbers of columns that this statement has dropped here, under the names that they had.
    `is_last`: it is that one; before it, the names here need not be the source's.
    """

    name: Name
    columns: Mapping[int, str]
    then: NamesThen
    others: frozenset[str]
    dropped: frozenset[int]
    is_table_dropped: bool
    is_last: bool

    @property
    def is_elsewhere(self) -> bool:
        """True if the source's has another name."""
        return (self.is_last or self.is_table_dropped) and self.then.table not in (None, self.name)

    @property
    def is_renamed(self) -> bool:
        """True if that is not its schema's alone, of which the source does not tell."""
        return self.then.table is not None and self.then.table[1] != self.name[1]

    @property
    def passed_on(self) -> dict[int, str]:
        """The columns whose names other ones have at the source, or that were dropped here for another one."""
        theirs = {name: number for number, name in self.then.columns.items()}

        def is_met(number: int, name: str) -> bool:
            theirs_of_it = self.then.columns.get(number, name)
            if number in self.dropped:
                return theirs_of_it != name
            is_other = theirs_of_it != name and theirs_of_it in self.others
            return self.is_last and (is_other or theirs.get(name, number) != number)

        return {number: name for number, name in self.columns.items() if is_met(number, name)}


@contextmanager
def refusing_namesakes(connection: Connection, session: Session, step: Statement) -> Iterator[None]:
    """Around the statement, in its transaction. Errors: `PlanError` where it may have met another table or column than
    at the source; psycopg's own.
    """
    before = _here(connection, session, step)
    yield
    _require_same_names(connection, session, step, list(_pairs(connection, session, step, before)))


def _require_same_names(connection: Connection, session: Session, step: Statement, pairs: Sequence[_Pair]) -> None:
    theirs = {pair.then.table for pair in pairs}
    elsewhere = [
        pair
        for pair in pairs
        if pair.is_elsewhere
        and (pair.name in theirs or pair.is_table_dropped or (pair.is_renamed and _is_named(pair.name, step)))
    ]
    inside = [pair for pair in pairs if pair.passed_on and (pair.dropped or _is_named(pair.name, step))]
    if not elsewhere and not inside:
        return
    met = [".".join(pair.name) for pair in elsewhere]
    met += [f"{name} of {'.'.join(pair.name)}" for pair in inside for name in pair.passed_on.values()]
    tables = dict.fromkeys(".".join(pair.then.table or pair.name) for pair in (*elsewhere, *inside))
    hint = f"`{command_line('recopy', tables)}` copies what is concerned anew; then {step.skipping}."
    if _is_mended_by_renames(pairs, step):
        hint = f"Run {'; '.join(_renames(connection, pairs))} at the target, then run again. Or: {hint}"
    raise PlanError(
        f"the source sent DDL that would alter something else at the target: {listed(met)} had another name at the "
        "source by then, and a rename that is not sent is followed with the next row only: "
        f"{shown_ddl(step.text)}",
        op="ddl",
        pipeline=session.pipeline,
        table=next(iter(tables)),
        hint=hint,
    )


def _here(connection: Connection, session: Session, step: Statement) -> dict[int, _Table]:
    """Those tables that the statement tells of, by the oids of the source's."""
    here: dict[int, _Table] = {}
    if not step.names:
        return here
    with without_search_path(connection):
        found = connection.execute(
            statement("applied_tables", "names"),
            {"pipeline": session.pipeline, "oids": [one.oid for one in step.names]},
        ).fetchall()
    for oid, schema, table, number, column in found:
        found_table = here.setdefault(oid, _Table((schema, table), {}, set()))
        if number is not None:
            found_table.columns[number] = column
        else:
            found_table.others.add(column)
    return here


def _pairs(connection: Connection, session: Session, step: Statement, before: Mapping[int, _Table]) -> Iterator[_Pair]:
    """As they are behind the statement; a table or column that it dropped as it was `before`. Without tables that were
    copied from a later moment: `leaving_newer_copies` looks at those.
    """
    after = _here(connection, session, step)
    newer = newer_copies(connection, session, step.end_offset) if before else {}
    for then in step.names:
        if then.oid in before:
            was = before[then.oid]
            now = after.get(then.oid, was)
            if ".".join(now.name) not in newer:
                yield _Pair(
                    now.name,
                    {**was.columns, **now.columns},
                    then,
                    others=frozenset(now.others),
                    dropped=frozenset(was.columns.keys() - now.columns.keys()),
                    is_table_dropped=then.oid not in after,
                    is_last=step.is_last,
                )


def _is_named(name: Name, step: Statement) -> bool:
    """True if a text of the statement's transaction has the table's name among its words."""
    word = re.compile(rf"(?<!\w){re.escape(name[1])}(?!\w)", re.IGNORECASE)
    return any(word.search(text) for text in (step.text, *step.beside))


def _is_mended_by_renames(pairs: Iterable[_Pair], step: Statement) -> bool:
    """True if the target only has to have the names that are known. What the statement renames or drops, or the source
    dropped before, had another one before it; and rows and statements before it in its transaction, which come again,
    mean the names of their moment.
    """
    are_known = all(pair.columns.keys() <= pair.then.columns.keys() for pair in pairs if pair.passed_on)
    return are_known and not step.beside and not step.is_behind_rows and not _RENAMES.search(step.text)


def _renames(connection: Connection, pairs: Iterable[_Pair]) -> Iterator[str]:
    """The statements that give the tables and their columns the names that they had at the source then. An inherited
    column gets its name with the table above.
    """
    names = [(pair.name, pair.then.table) for pair in pairs if pair.is_elsewhere]
    tables = tuple((old, new) for old, new in names if new is not None)
    if tables:
        for one in renaming_statements(Renaming(pairs=tables, is_certain=True)):
            yield one.as_string(None)
    for pair in pairs:
        name, theirs = pair.then.table or pair.name, pair.then.columns
        wanted = [
            (own, theirs[number])
            for number, own in pair.columns.items()
            if theirs.get(number, own) != own and owner_of_column(connection, quoted(*pair.name), quoted(own)) is None
        ]
        for one in renaming([(name, own, new) for own, new in wanted], [*pair.columns.values()]):
            yield one.as_string(None)
