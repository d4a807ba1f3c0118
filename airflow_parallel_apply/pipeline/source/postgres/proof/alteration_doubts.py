"""Tables whose values, or the values of whose types, were altered in a way that the slot does not send, or that inherit
otherwise: `alteration_doubts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from airflow_parallel_apply.pipeline.log.protocol import LogState
from airflow_parallel_apply.pipeline.model.finding import listed
from airflow_parallel_apply.pipeline.source.postgres.pending import Pending
from airflow_parallel_apply.pipeline.source.postgres.proof.composites import altered_attributes
from airflow_parallel_apply.pipeline.source.postgres.proof.doubt import Doubt
from airflow_parallel_apply.pipeline.source.postgres.proof.histories import Pair
from airflow_parallel_apply.pipeline.source.postgres.proof.inheritance import altered_inheritance
from airflow_parallel_apply.pipeline.source.postgres.proof.labels import renamed_labels
from airflow_parallel_apply.pipeline.source.postgres.proof.passed_types import known_before
from airflow_parallel_apply.pipeline.source.postgres.proof.registration import RegisteredTable
from airflow_parallel_apply.pipeline.source.postgres.proof.rewrites import altered_values
from airflow_parallel_apply.pipeline.source.postgres.proof.untold_columns import exchanged_columns
from airflow_parallel_apply.pipeline.source.postgres.proof.young_types import altered_young_types

_NO_USING: Final = (
    "there was no USING but the cast to the new type, no column's type was changed more than once since a row was last "
    "written to the table, and the target's columns have the source's types"
)
_VALUES_HINT: Final = (
    "Such a statement is followed if it is sent as a DDL message in its transaction, or, without USING or with nothing "
    "but the cast there, if a superuser ran parallel-apply install-ddl-capture at the source before."
)

_LABELS_FIRST: Final = (
    "Run each such ALTER TYPE … RENAME VALUE at the target, too, if it has the type, and then go on: "
)
_SENT_HINT: Final = "Such a statement is followed if it is sent as a DDL message in its transaction."
_SINCE: Final = (
    "no row was written to the table between the beginning of the last green run that applied everything (it was not "
    "stopped, and had neither an until nor a data interval) and the last "
)
_NO_ROWS: Final = (
    f"{_SINCE}statement that altered the type, and the target's columns have the type, altered in the same way"
)
_NO_RENAMED_LABEL: Final = (
    f"{_SINCE}ALTER TYPE … RENAME VALUE, if there was any, and the target's columns have the type, altered in the same "
    "way"
)
_NO_OTHER_ROWS: Final = "its rows are the same on both sides"

_COMPUTED_FIRST: Final = (
    "Compute these columns anew at the source (ALTER TABLE … ALTER COLUMN … SET EXPRESSION, with the expression that "
    "it has; before PostgreSQL 17, drop the column and add it again), and then go on: "
)
_ATTRIBUTES_FIRST: Final = (
    "Run the same ALTER TYPE … ATTRIBUTE at the target (or ALTER TABLE … COLUMN, of a table whose rows are values), "
    "if it has the type, and then go on: "
)
_YOUNG_FIRST: Final = "Run the same ALTER TYPE at the target, if it has the type as it was made, and then go on: "
_UNTOLD_HINT: Final = (
    "The event trigger tells of a change only if it is on: leave it enabled in migrations, and event_triggers as well."
)


def alteration_doubts(
    pending: Pending, pairs: Sequence[Pair], known: Mapping[int, RegisteredTable], *, log: LogState, horizon: int | None
) -> Iterator[tuple[Doubt, RegisteredTable]]:
    """Yield the doubts of tables that are otherwise than registered, with what was registered of them. `known`: all
    registered tables, by oid. `horizon`: that of the registration. Errors: psycopg's own.
    """
    yield from _value_doubts(pending, pairs, log, horizon)
    yield from _label_doubts(pending, pairs, horizon)
    yield from _attribute_doubts(pending, pairs, horizon)
    yield from _young_type_doubts(pending, pairs, horizon)
    yield from _inheritance_doubts(pending, pairs, known)
    for before, after in exchanged_columns(pending, pairs, log.sightings):
        what = f"a column of {after.name} was dropped and another one created, and the source's event trigger, which "
        what += "tells of such changes, did not tell of both"
        yield Doubt(table=after.name, what=what, more=_UNTOLD_HINT), before


def _value_doubts(
    pending: Pending, pairs: Sequence[Pair], log: LogState, horizon: int | None
) -> Iterator[tuple[Doubt, RegisteredTable]]:
    """Find tables whose rows may have other values than were sent, with what was registered of them."""
    known = known_before(log) if pairs else {}
    found = altered_values(pending, pairs, horizon=horizon, log=known)
    for (before, after), columns, passed, cast in found:
        if cast:
            what = f"computed columns of {after.name} had other types in between, which cast what was computed before: "
            yield Doubt(table=after.name, what=f"{what}{listed(cast)}", first=_COMPUTED_FIRST, more=_SENT_HINT), before
            continue
        if passed:
            what = f"columns of {after.name} had other types or expressions in between, and no row tells the target "
            what += f"what these made of older values: {listed(passed)}"
            yield Doubt(table=after.name, what=what, more=_SENT_HINT), before
            continue
        what = f"{after.name} was rewritten while {listed(columns)} changed, as ALTER COLUMN … TYPE does, and nothing "
        what += "shows that no USING gave older rows other values"
        yield Doubt(table=after.name, what=what, unless=_NO_USING, more=_VALUES_HINT), before


def _label_doubts(
    pending: Pending, pairs: Sequence[Pair], horizon: int | None
) -> Iterator[tuple[Doubt, RegisteredTable]]:
    """Find tables whose values may print other labels of an enum than were sent, with what was registered of them."""
    for (before, after), labels in renamed_labels(pending, pairs, horizon):
        what = (
            f"labels of an enum in {after.name} were renamed at the source, or numbered anew, of which no row is sent: "
            f"{listed(labels)}"
        )
        yield Doubt(table=after.name, what=what, first=_LABELS_FIRST, unless=_NO_RENAMED_LABEL, more=_SENT_HINT), before


def _attribute_doubts(
    pending: Pending, pairs: Sequence[Pair], horizon: int | None
) -> Iterator[tuple[Doubt, RegisteredTable]]:
    """Find tables whose values may print other attributes of a composite type than were sent, with what was registered
    of them.
    """
    for (before, after), types in altered_attributes(pending, pairs, horizon):
        what = (
            f"attributes of a composite type in {after.name} were added or dropped at the source, of which no row is "
        )
        what += f"sent: {listed(types)}"
        yield Doubt(table=after.name, what=what, first=_ATTRIBUTES_FIRST, unless=_NO_ROWS, more=_SENT_HINT), before


def _young_type_doubts(
    pending: Pending, pairs: Sequence[Pair], horizon: int | None
) -> Iterator[tuple[Doubt, RegisteredTable]]:
    """Find tables that use types which may have been altered under their rows before they were ever registered, with
    what was registered of them.
    """
    for (before, after), types in altered_young_types(pending, pairs, horizon):
        what = f"types that {after.name} has not used before were altered at the source since they were made, of which "
        what += f"no row is sent: {listed(types)}"
        yield Doubt(table=after.name, what=what, first=_YOUNG_FIRST, unless=_NO_ROWS, more=_SENT_HINT), before


def _inheritance_doubts(
    pending: Pending, pairs: Sequence[Pair], known: Mapping[int, RegisteredTable]
) -> Iterator[tuple[Doubt, RegisteredTable]]:
    """Find tables that the target would alter along with others, or would not, unlike the source, with what was
    registered of them.
    """
    for (before, after), altered in altered_inheritance(pending, pairs, known):
        first = f"Run {'; '.join(altered.ended)} at the target, if its tables inherit so, and then go on: "
        last = f"Then run {'; '.join(altered.begun)} at the target, if its tables do not inherit so. "
        yield (
            Doubt(
                table=after.name,
                what=f"{after.name} {listed(altered.what)}, and the target was not told",
                first=first if altered.ended else "",
                unless=_NO_OTHER_ROWS,
                more=(last if altered.begun else "") + _SENT_HINT,
            ),
            before,
        )
