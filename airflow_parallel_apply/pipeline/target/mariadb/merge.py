"""Merge: staged net changes become rows of the target's tables, in sets, inside the unit's transaction.

Never by "insert, or update where there is such a row": which row that is, another unique index may decide. So rows to
delete go first, over all tables; then those to update whose unique values change are taken out; then the rest is
updated in place, and what is new, or was taken out, is inserted. So every unique value is free before it is taken.

An update over two tables keeps all new values in a temporary table before it writes the first one: on disk, where one
is of a type without bound. So where the key's index is the only one, and staging has the whole row, all rows to update
are taken out and put back: measured, 4 microseconds of the server's processor a row instead of 8.

Each statement goes from staging to the table by the key, and its count must be the one that was staged: a row that is
not there, or there already, is an error that names its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from airflow_parallel_apply.pipeline.errors import ParallelApplyError, TargetError
from airflow_parallel_apply.pipeline.model.epoch import StagedTable
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.target.mariadb.multiset import merge_multiset
from airflow_parallel_apply.pipeline.target.mariadb.naming import DATABASE
from airflow_parallel_apply.pipeline.target.mariadb.quoting import listed, quoted
from airflow_parallel_apply.pipeline.target.mariadb.session import Session
from airflow_parallel_apply.pipeline.target.mariadb.staging import OPERATION, UNSENT
from airflow_parallel_apply.pipeline.target.mariadb.tables import TargetTable

_SHOWN_KEYS: Final = 3
_VERBS: Final = {"D": "delete", "U": "update", "R": "update", "I": "insert"}
_DIFFER: Final = (
    "The target's rows are not those of the source. Did somebody else write there, or did the copies differ at the "
    "start? `parallel-apply compare` shows it."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A staging table, and the table that it goes into."""

    table: TargetTable
    staged: StagedTable

    @property
    def staging(self) -> str:
        """The name in statements."""
        return quoted(DATABASE, self.staged.staging)

    @property
    def same_key(self) -> str:
        """True of a row `t` and its staged change `s`."""
        return " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in self.table.key_names)


class MissingRows(Exception):
    """A merge changed another number of rows than were staged. Stays in this room: see `explain_missing`."""

    def __init__(self, part: Part, operation: str, expected: int, found: int) -> None:
        super().__init__(part.table.relation.name)
        self.part = part
        self.operation = operation
        self.expected = expected
        self.found = found


def merge_parts(session: Session, parts: Sequence[Part]) -> None:
    """Apply the parts. Errors: `MissingRows`; the driver's own. The caller rolls back."""
    keyed = [part for part in parts if part.table.key_names]
    for part in keyed:
        _run(session, part, "D", part.staged.deletes, _delete(part))
    taken_out = [_take_out(session, part) for part in keyed]
    for part, (_, count) in zip(keyed, taken_out, strict=True):
        _run(session, part, "U", part.staged.updates - count, _update(part))
    for part, (operation, count) in zip(keyed, taken_out, strict=True):
        _run(session, part, operation, count, _insert(part))
        _run(session, part, "I", part.staged.inserts, _insert(part))
    for part in parts:
        if not part.table.key_names:
            merge_multiset(session, part.table, part.staged)


def explain_missing(session: Session, found: MissingRows) -> ParallelApplyError:
    """Look, after the roll-back, which staged keys have no row. Errors: the driver's own."""
    part, table = found.part, found.part.table
    operation = "U" if found.operation == "R" else found.operation
    names = table.key_names
    missing = session.rows(
        f"SELECT {', '.join(f's.{quoted(name)}' for name in names)} FROM {part.staging} s"
        f" LEFT JOIN {table.quoted} t ON {part.same_key}"
        f" WHERE s.{quoted(OPERATION)} = %s AND t.{quoted(names[0])} IS NULL LIMIT {_SHOWN_KEYS}",
        [operation],
    )
    verb = _VERBS[operation]
    if not missing or operation == "I":
        return TargetError(
            f"{found.found} rows were changed for {found.expected} keys to {verb}",
            table=table.relation.name,
            hint="Does the target's table have a trigger, or two rows with one key?",
        )
    shown = "; ".join(", ".join(f"{name}={value}" for name, value in zip(names, row, strict=True)) for row in missing)
    return TargetError(
        f"{found.expected - found.found} rows to {verb} are not in the target, first: {shown}",
        table=table.relation.name,
        hint=_DIFFER,
    )


def _run(session: Session, part: Part, operation: str, expected: int, statement: str) -> None:
    if expected == 0:
        return
    found = session.exactly(statement, [operation], table=part.table.relation.name)
    if found != expected:
        raise MissingRows(part, operation, expected, found)


def _take_out(session: Session, part: Part) -> tuple[str, int]:
    """Take out the rows to put back; returns the operation that they are staged under, and how many. All, where that
    costs less than updating them; else those whose unique values change, with the values that were not sent. What the
    source has not of a row would be lost: then they stay, and the server refuses what is in their way.
    """
    table = part.table
    if table.has_one_index and not table.has_others and not part.staged.has_unsent:
        _run(session, part, "U", part.staged.updates, _delete(part))
        return "U", part.staged.updates
    unique = [name for name in table.other_unique if name in {column.name for column in table.relation.columns}]
    if not unique or not part.staged.updates or table.has_others:
        return "R", 0
    changes = " OR ".join(f"NOT (t.{quoted(name)} <=> {_sent(part, name)})" for name in sorted(unique))
    kept = [
        f", s.{quoted(column.name)} = {_sent(part, column.name)}"
        for column in table.relation.columns
        if part.staged.has_unsent and not column.key
    ]
    session.exactly(
        f"UPDATE {part.staging} s STRAIGHT_JOIN {table.quoted} t ON {part.same_key}"
        f" SET s.{quoted(OPERATION)} = 'R'{''.join(kept)} WHERE s.{quoted(OPERATION)} = %s AND ({changes})",
        ["U"],
        table=table.relation.name,
    )
    count = session.row(f"SELECT COUNT(*) FROM {part.staging} WHERE {quoted(OPERATION)} = 'R'")
    moved = int(count[0]) if count is not None else 0
    _run(session, part, "R", moved, _delete(part))
    return "R", moved


def _sent(part: Part, name: str) -> str:
    """The value that an update gives a column: what was staged, or what the row has where it was not sent."""
    if not part.staged.has_unsent:
        return f"s.{quoted(name)}"
    place = next(index for index, column in enumerate(part.table.relation.columns) if column.name == name) + 1
    return f"IF(SUBSTR(s.{quoted(UNSENT)}, {place}, 1) = '1', t.{quoted(name)}, s.{quoted(name)})"


def _delete(part: Part) -> str:
    return (
        f"DELETE t FROM {part.staging} s STRAIGHT_JOIN {part.table.quoted} t ON {part.same_key}"
        f" WHERE s.{quoted(OPERATION)} = %s"
    )


def _update(part: Part) -> str:
    """Set every column; those of the key only where an equal key may have another text, as with blanks that end it. A
    table that has no other column gets one of the key's.
    """
    columns = part.table.relation.columns
    names = [column.name for column in columns if not column.key or column.kind is KeyKind.BLANK_PADDED]
    made = [f"t.{quoted(name)} = {_sent(part, name)}" for name in names]
    if not made:
        key = quoted(part.table.key_names[0])
        made = [f"t.{key} = s.{key}"]
    return (
        f"UPDATE {part.staging} s STRAIGHT_JOIN {part.table.quoted} t ON {part.same_key}"
        f" SET {', '.join(made)} WHERE s.{quoted(OPERATION)} = %s"
    )


def _insert(part: Part) -> str:
    names = listed(column.name for column in part.table.relation.columns)
    return (
        f"INSERT INTO {part.table.quoted} ({names}) SELECT {names} FROM {part.staging} WHERE {quoted(OPERATION)} = %s"
    )
