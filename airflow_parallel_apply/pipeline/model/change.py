"""The words of the log: operations, relations, and the two Arrow schemas that every room shares.

A *row* of the log is one change, or one half of a key-changing update: the half that leaves the old
key (`KEY_LEFT`, key values only) and, at the next fragno, the half that arrives at the new one
(`KEY_ARRIVED`, all values and the old key). A row of a table without a key whose old rows come whole is its own key, so
every update of one is such a pair. The halves may lie in different buckets. So a row belongs
to one key, a key to one bucket, a bucket to one channel, and a channel's rows suffice to apply it (law 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from airflow_parallel_apply.pipeline.model import former
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.model.value_type import OPAQUE, ValueType

BUCKET_COUNT: Final = 1024
"""Fixed hash buckets of a log; a channel is a contiguous range of them, so a log outlives a change of channels."""

NO_SEQNO: Final = -1
"""Before the first transaction; the position of a channel that has committed nothing."""

LAST_SEQNO: Final = 2**63 - 1
"""Above every seqno: the `next_seqno` of a row that nothing in its segment supersedes."""


class Operation(StrEnum):
    """The effect of a log row on its key, or on its table."""

    INSERT = "I"
    UPDATE = "U"
    DELETE = "D"
    KEY_ARRIVED = "K"
    KEY_LEFT = "X"
    TRUNCATE = "T"
    MESSAGE = "M"

    @property
    def is_row(self) -> bool:
        """True if it changes one row; the others are statements, and their transaction is critical."""
        return self not in (Operation.TRUNCATE, Operation.MESSAGE)


class Mark(StrEnum):
    """Facts about a transaction that capture saw and the planner must know; structure, not policy."""

    TRUNCATE = "truncate"
    MESSAGE = "message"
    RELATION = "relation"
    """The definition of a table that this log had seen before changed (columns, key, replica identity)."""
    KEY_UNSENT = "key_unsent"
    """An update changed a key and left a column unsent: only the target's old row has its value."""
    COPY = "copy"
    """Rows that were there when the log began, as the initial copy read them. No such transaction was at the source."""


class ReplicaIdentity(StrEnum):
    """The part that a source sends of the row that an update or delete finds."""

    KEY = "key"
    """Its key, if the table has one."""
    FULL = "full"
    """All of it."""
    NONE = "none"
    """Nothing: neither is possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a relation, as the source describes it.

    `kind`: how a key compares it. `number`: which column of the table it is, through all renaming; None in a log of a
    version that did not ask, and where `is_unclear`: the source's catalog had gone on before it was asked. `fill`: the
    SQL literal that rows older than the column have; None where that is not known. `generated`: whether the source
    computes it; None where that is not known. `value`: what its texts mean. `type_number`: the source's for a
    type that somebody made, which keeps it under another name; None of any other, and in a log of a version that did
    not ask.
    """

    name: str
    type_name: str
    kind: KeyKind = KeyKind.NOT_CANONICAL
    key: bool = False
    number: int | None = None
    fill: str | None = None
    is_unclear: bool = False
    generated: bool | None = None
    value: ValueType = OPAQUE
    type_number: int | None = None

    @property
    def is_fill_assumed(self) -> bool:
        """True of a column that had left the catalog again when that was asked: nobody knows what older rows had in it,
        and NULL stands for that.
        """
        return self.fill == "NULL" and self.number is not None and self.generated is None

    def has_type_of(self, other: Column) -> bool:
        """True if their types are one, maybe under another name, so that no value was cast."""
        is_one = self.type_number is not None and self.type_number == other.type_number
        # Limits in brackets are no part of a type's number, and other ones cast.
        is_renamed = is_one and "(" not in self.type_name + other.type_name
        return self.type_name == other.type_name or is_renamed

    def is_as(self, other: Column) -> bool:
        """True if both are one column, unchanged, as far as their logs' versions tell. What older rows have of it does
        not count; nor do the type's number, the kind and the values' type, which the type and, of a key,
        `Relation.canonical` tell.
        """
        return (
            (self.name, self.type_name, self.key) == (other.name, other.type_name, other.key)
            and (self.number == other.number or None in (self.number, other.number))
            and not self.is_unclear
            and not other.is_unclear
            and (self.generated == other.generated or None in (self.generated, other.generated))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Renaming:
    """Tables that took new names together: (schema, table) before and after. `is_certain`: no DDL message can have told
    the target of it, which matters where names only changed hands.
    """

    pairs: tuple[tuple[tuple[str, str], tuple[str, str]], ...]
    is_certain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """One version of a table's definition. Rows name it by `relation_id`, unique within a log.

    `canonical` is False when a key column's type has no canonical text (law 1): all the rows of the
    table then lie in one bucket. `replica_identity`: of a partitioned table the one that its partitions have together.
    `computed`: names of columns that the source computes and does not
    send; None in a log of a version that did not ask. `computed_numbers`: their numbers, as in `Column`.
    """

    relation_id: int
    schema: str
    table: str
    replica_identity: ReplicaIdentity
    columns: tuple[Column, ...]
    canonical: bool = True
    computed: tuple[str, ...] | None = None
    computed_numbers: tuple[int, ...] | None = None
    expressions: tuple[tuple[str, str], ...] = ()
    """Types and expressions of generated columns, by name, as ADD COLUMN takes them; those that are known."""
    oid: int | None = None
    """The table of the source; None in a log of an older version."""
    renaming: Renaming | None = None
    """Takes place before the first row of this version."""
    first_seqno: int | None = None
    """The seqno of its first row; `NO_SEQNO` where the log had the version before any row of it, as a copy registers
    it; None in a log of an older version.
    """

    @property
    def name(self) -> str:
        """`schema.table`, unquoted: for people, never for SQL."""
        return f"{self.schema}.{self.table}"

    @property
    def key_indexes(self) -> tuple[int, ...]:
        """Positions of the key columns; empty for a table without a key."""
        return tuple(index for index, column in enumerate(self.columns) if column.key)

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the key columns."""
        return tuple(column.name for column in self.columns if column.key)

    @property
    def key_kinds(self) -> tuple[KeyKind, ...]:
        """The kinds of the key columns."""
        return tuple(column.kind for column in self.columns if column.key)

    @property
    def by_image(self) -> bool:
        """True if its rows are told apart by all their values: it has no key, and old rows come whole. Such a table is
        a multiset; its rows lie in one bucket.
        """
        return self.replica_identity is ReplicaIdentity.FULL and not self.key_indexes

    @property
    def unsent_computed(self) -> frozenset[str]:
        """The names of columns that the source computes and does not send, as far as the definition says."""
        sent = {column.name for column in self.columns}
        return frozenset({*(self.computed or ()), *(name for name, _ in self.expressions)} - sent)

    def computes(self, column: Column) -> bool:
        """True if it computes a column, and does not send it, that a newer definition sends: by its number, since
        another column may have its name by now. By its name where the numbers are not known.
        """
        is_it = column.number in (*(self.computed_numbers or ()), None)
        return column.name in (self.computed or ()) and (is_it or self.computed_numbers is None)

    def newly_computed(self, old: Relation) -> tuple[tuple[str, str], ...]:
        """Those of `expressions` that an older definition does not compute, as far as it says."""
        known, sent = old.computed, {column.name for column in self.columns}
        return tuple(one for one in self.expressions if known is not None and one[0] not in {*known, *sent})

    def remade(self, old: Relation) -> tuple[tuple[str, str], ...]:
        """Those of `expressions` whose column is another one of the same name in an older definition, as far as both
        say.
        """
        before, now = (dict(zip(one.computed or (), one.computed_numbers or (), strict=False)) for one in (old, self))
        return tuple(one for one in self.expressions if before.get(one[0], now.get(one[0])) != now.get(one[0]))

    def recomputed(self, old: Relation) -> tuple[tuple[str, str], ...]:
        """Those of `expressions` that an older definition computes otherwise, as far as both say."""
        before = dict(old.expressions)
        return tuple((name, text) for name, text in self.expressions if before.get(name, text) != text)

    @property
    def is_numbered(self) -> bool:
        """True if the columns have the source's own numbers, which tell them apart for good."""
        return all(column.number is not None for column in self.columns)

    def lacks_numbers_of(self, other: Relation) -> bool:
        """True if another one that is as this one numbers columns, computed ones too, that this one does not."""
        lacks_computed = self.computed_numbers is None and bool(other.computed_numbers)
        return lacks_computed or (other.is_numbered and not self.is_numbered)

    def to_json(self) -> dict[str, Any]:
        """The form that manifests and staged plans carry."""
        return {
            "relation_id": self.relation_id,
            "schema": self.schema,
            "table": self.table,
            "replica_identity": self.replica_identity,
            "canonical": self.canonical,
            "oid": self.oid,
            "renaming": (self.renaming.pairs, self.renaming.is_certain) if self.renaming is not None else None,
            "columns": [
                [
                    column.name,
                    column.type_name,
                    column.key,
                    column.number,
                    column.fill,
                    column.is_unclear,
                    column.generated,
                ]
                for column in self.columns
            ],
            "kinds": [column.kind for column in self.columns],
            "values": [str(column.value) for column in self.columns],
            "type_numbers": [column.type_number for column in self.columns],
            "computed": self.computed,
            "computed_numbers": self.computed_numbers,
            "expressions": self.expressions,
            "first_seqno": self.first_seqno,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Relation:
        """Inverse of `to_json`."""
        return cls(
            relation_id=value["relation_id"],
            schema=value["schema"],
            table=value["table"],
            replica_identity=_identity_from_json(value["replica_identity"]),
            canonical=value["canonical"],
            # Older versions of the software did not keep them.
            oid=value.get("oid"),
            renaming=_renaming_from_json(value.get("renaming")),
            columns=_columns_from_json(value),
            computed=_tuple(value.get("computed")),
            computed_numbers=_tuple(value.get("computed_numbers")),
            expressions=tuple((name, text) for name, text in value.get("expressions", ())),
            first_seqno=value.get("first_seqno"),
        )

    def is_as(self, other: Relation) -> bool:
        """True if both define a table alike, as far as each knows; ids do not count."""
        return (
            (self.schema, self.table, self.replica_identity, self.canonical)
            == (other.schema, other.table, other.replica_identity, other.canonical)
            and len(self.columns) == len(other.columns)
            and all(one.is_as(another) for one, another in zip(self.columns, other.columns, strict=True))
            and (self.computed == other.computed or None in (self.computed, other.computed))
            and (
                self.computed_numbers == other.computed_numbers
                or None in (self.computed_numbers, other.computed_numbers)
            )
            and not self.recomputed(other)
        )


def _tuple(values: Sequence[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)


def _identity_from_json(word: str) -> ReplicaIdentity:
    return ReplicaIdentity(former.IDENTITIES.get(word, word))


def _columns_from_json(value: dict[str, Any]) -> tuple[Column, ...]:
    """Logs of earlier versions have neither kinds nor types of values, nor the types' numbers."""
    kinds, values, type_numbers = (value.get(name) for name in ("kinds", "values", "type_numbers"))
    return tuple(
        _column_from_json(
            KeyKind(kinds[place]) if kinds is not None else former.kind_of(column[1]),
            ValueType.parse(values[place]) if values is not None else former.value_type_of(column[1]),
            type_numbers[place] if type_numbers is not None else None,
            *column,
        )
        for place, column in enumerate(value["columns"])
    )


def _column_from_json(
    kind: KeyKind,
    value: ValueType,
    type_number: int | None,
    name: str,
    type_name: str,
    key: bool,
    number: int | None = None,
    fill: str | None = None,
    is_unclear: bool = False,
    generated: bool | None = None,
    *_: object,
) -> Column:
    """Logs of earlier versions say less, or more that is not asked any longer."""
    return Column(
        name=name,
        type_name=type_name,
        kind=kind,
        key=key,
        number=number,
        fill=fill,
        is_unclear=is_unclear,
        generated=generated,
        value=value,
        type_number=type_number,
    )


def _renaming_from_json(value: Any) -> Renaming | None:
    if value is None:
        return None
    pairs, is_certain = value
    return Renaming(pairs=tuple((tuple(old), tuple(new)) for old, new in pairs), is_certain=is_certain)
