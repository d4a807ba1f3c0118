"""Names of the target's tables, which somebody changes there by hand when the source's tables took others.

Nobody does so at the moment at which the log has it. Rows of a former name then meet no table of that name, or another
one, which was made for it since; a table that is made for them would keep them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.target.mariadb.diagnosis import NO_TABLE
from airflow_parallel_apply.pipeline.target.mariadb.quoting import shown
from airflow_parallel_apply.pipeline.target.mariadb.session import Session

Place: TypeAlias = tuple[str, str]
"""Database and table."""
_ASIDE: Final = "parallel_apply_renaming_{}"
_LETTERS: Final = 40
"""So many are left of a name that is lengthened, since it has 64 at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenamingLeft:
    """The command that gives tables the names that the source's took together. `may_be_done`: all of these names are
    there, as they are where tables only exchanged theirs.
    """

    command: str
    may_be_done: bool


def renaming_left(session: Session, older: Relation, newer: Relation) -> RenamingLeft | None:
    """Return what is left to do about the names that a newer definition brings; None where it brings none, or where
    names show that all tables have theirs. Errors: the driver's own.
    """
    if newer.renaming is None or newer.name == older.name:
        return None
    place = session.address.place_of
    both = ((session.folded(place(*before)), session.folded(place(*after))) for before, after in newer.renaming.pairs)
    pairs = [(before, after) for before, after in both if before != after]
    if not pairs:
        return None
    old, new = {before for before, _ in pairs}, {after for _, after in pairs}
    there = _existing(session, old | new)
    left, taken = old - new, new - old
    if left and taken <= there and not left & there:
        return None
    own = session.folded(session.address.place(newer))
    if not left and own not in there and new - {own} <= there:
        # It was archived under the other name, and what has its name now is not there yet.
        return None
    aside = [(name, _lengthened(name, "in_the_way")) for name in sorted(taken & there)]
    steps = [pair for pair in pairs if pair[0] in there]
    if {before for before, _ in steps} & {after for _, after in steps}:
        free = [(before[0], _ASIDE.format(number)) for number, (before, _) in enumerate(steps)]
        steps = [
            *((before, one) for (before, _), one in zip(steps, free, strict=True)),
            *((one, after) for (_, after), one in zip(steps, free, strict=True)),
        ]
    return RenamingLeft(command=_command([*aside, *steps]), may_be_done=new <= there) if steps else None


def require_own_name(session: Session, relation: Relation, definitions: Sequence[Relation]) -> None:
    """Require that the table of a definition is not there under another name that the log has for it: under a later
    one, or instead of its own. `definitions`: all, the oldest first. Errors: `TargetError`; the driver's own.
    """
    own = [one for one in definitions if one.oid is not None and one.oid == relation.oid]
    if all(one.name == relation.name for one in own):
        return
    places = {one.name: session.folded(session.address.place(one)) for one in definitions}
    there = _existing(session, set(places.values()))
    last = {one.oid: places[one.name] for one in definitions}
    bearers: dict[Place, set[int | None]] = {}
    for one in definitions:
        bearers.setdefault(places[one.name], set()).add(one.oid)

    def has_left(oid: int | None) -> bool:
        """True if a table has its last name at the target, which no other one can have."""
        return len(bearers[last[oid]]) == 1 and last[oid] in there

    place = places[relation.name]
    is_there = place in there
    for one in reversed(own):
        found = places[one.name]
        is_later = one.relation_id > relation.relation_id
        if found == place or found not in there or not (is_later or not is_there):
            continue
        others = {
            other.oid
            for other in definitions
            if places[other.name] == found
            and other.oid != one.oid
            and (not is_there or other.relation_id < one.relation_id)
        }
        if all(has_left(oid) for oid in others):
            raise _misnamed(session, relation, one, is_in_the_way=is_there)


def missing_table(session: Session, relation: Relation) -> TargetError:
    """The error of rows that have no table."""
    return TargetError(
        f"the target has no table {'.'.join(session.address.place(relation))}",
        table=relation.name,
        hint=NO_TABLE,
    )


def _misnamed(session: Session, relation: Relation, found: Relation, *, is_in_the_way: bool) -> TargetError:
    name, other = session.address.place(relation), session.address.place(found)
    aside = [(name, _lengthened(name, "made_since"))] if is_in_the_way else []
    when = "later" if found.relation_id > relation.relation_id else "before"
    hint = f"Give it the name that these rows have: {_command([*aside, (other, name)])}. "
    if is_in_the_way:
        hint += f"Or, if it is another one, give it another name: {_command([(other, _lengthened(other, 'former'))])}. "
    return TargetError(
        f"these rows are of {relation.name}, and the target has its table as {'.'.join(other)}, as it is called {when}",
        table=relation.name,
        hint=f"{hint}Then run again: a rename that comes later is told in its turn.",
    )


def _lengthened(name: Place, by: str) -> Place:
    return name[0], f"{name[1][:_LETTERS]}_{by}"


def _command(steps: Iterable[tuple[Place, Place]]) -> str:
    """The server does them in their order, all or none."""
    return f"RENAME TABLE {', '.join(f'{shown(*before)} TO {shown(*after)}' for before, after in steps)}"


def _existing(session: Session, places: Iterable[Place]) -> set[Place]:
    wanted = list(places)
    marks = ", ".join(["(%s, %s)"] * len(wanted))
    rows = session.rows(
        f"SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE (TABLE_SCHEMA, TABLE_NAME) IN ({marks})",
        [name for place in wanted for name in place],
    )
    return {session.folded((str(database), str(table))) for database, table in rows}
