"""The decoder by column says what decoding row by row says, however the messages are cut into batches."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.errors import SourceError
from airflow_parallel_apply.pipeline.model.change import Column, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.model.copy_text import line_widths
from airflow_parallel_apply.pipeline.model.key_kind import KeyKind
from airflow_parallel_apply.pipeline.source.postgres.proof.renaming import Renamed
from airflow_parallel_apply.pipeline.source.postgres.slot.pgoutput import Decoder
from airflow_parallel_apply.pipeline.source.postgres.wire.described_tables import LookedUp
from airflow_parallel_apply.pipeline.source.postgres.wire.messages import WireMessage, WireRelation
from airflow_parallel_apply.pipeline.source.postgres.wire.tuples import FollowedTable
from tests.log_batches import spelled
from tests.unit.pipeline.source import wire
from tests.unit.pipeline.source.wire import UNSENT, Change, Transaction

SINGLE, COMPOSITE, FULL, KEYLESS = 1, 2, 3, 4
KEYS = {SINGLE: (0,), COMPOSITE: (1, 2), FULL: (0,), KEYLESS: ()}
WIDTHS = {SINGLE: 3, COMPOSITE: 4, FULL: 3, KEYLESS: 2}
RELATIONS = [
    wire.relation(
        oid, f"t{oid}", tuple((f"c{n}", n in KEYS[oid]) for n in range(WIDTHS[oid])), "f" if oid == 3 else "d"
    )
    for oid in KEYS
]


class Definitions:
    """Stands for catalog and writer: a new id for each definition, redefined when the table is known."""

    def __init__(self) -> None:
        self.relations: list[Relation] = []

    def table(self, found: WireRelation, commit_lsn: int) -> LookedUp:
        columns = tuple(
            Column(name=column.name, type_name="text", kind=KeyKind.TEXT, key=column.key) for column in found.columns
        )
        known = [relation for relation in self.relations if relation.table == found.table]
        if not known or known[-1].columns != columns:
            self.relations.append(
                Relation(
                    relation_id=len(self.relations) + 1,
                    schema=found.schema,
                    table=found.table,
                    replica_identity=ReplicaIdentity.FULL if found.replica_identity == "f" else ReplicaIdentity.KEY,
                    columns=columns,
                )
            )
        relation = next(one for one in reversed(self.relations) if one.table == found.table)
        return LookedUp(table=FollowedTable(relation=relation), is_redefined=bool(known) and known[-1] is not relation)


def ddl_of(xid: int, commit_lsn: int, message: WireMessage) -> tuple[bytes, ...] | None:
    """Stands for the server, which verifies that somebody sent it who may."""
    return (message.content,) if message.transactional and message.prefix == "parallel_apply.ddl" else None


def decode(batches: list[list[bytes]], *, definitions: Definitions | None = None) -> tuple[pa.Table, pa.Table, Decoder]:
    decoder = Decoder(
        next_seqno=0,
        table=(definitions or Definitions()).table,
        ddl=ddl_of,
        renamed=lambda *_: Renamed(),
        is_part=lambda *_: False,
    )
    made = [decoder.decode(pa.array(batch, pa.binary())) for batch in batches if batch]
    return (
        pa.Table.from_batches([rows for rows, _ in made]),
        pa.Table.from_batches([transactions for _, transactions in made]),
        decoder,
    )


def one_batch(*transactions: Transaction) -> list[list[bytes]]:
    return [[*_described(list(transactions))]]


def _described(transactions: list[Transaction]) -> list[bytes]:
    """Relations stand inside the first transaction, as the server sends them."""
    flat = [found for transaction in transactions for found in wire.messages(transaction)]
    return [flat[0], *RELATIONS, *flat[1:]]


_VALUES = st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6)
_KEY_VALUES = st.sampled_from(["1", "2", "", "ä", "10"])


@st.composite
def changes(draw: st.DrawFn) -> Change:
    oid = draw(st.sampled_from(sorted(KEYS)))
    width, key = WIDTHS[oid], KEYS[oid]

    def row(*, may_be_unsent: bool) -> tuple[object, ...]:
        values = _VALUES | st.just(UNSENT) if may_be_unsent else _VALUES
        return tuple(draw(_KEY_VALUES if index in key else values) for index in range(width))

    kind = draw(st.sampled_from("IUD")) if key else "I"
    new = None if kind == "D" else row(may_be_unsent=kind == "U")
    if kind == "I":
        return Change(kind, oid, new)
    full = row(may_be_unsent=False)
    old = full if oid == FULL else tuple(value if index in key else None for index, value in enumerate(full))
    marker = "O" if oid == FULL else "K"
    if kind == "D":
        return Change(kind, oid, old=old, marker=marker)
    if oid != FULL and draw(st.booleans()):
        return Change(kind, oid, new)
    if draw(st.booleans()) and new is not None:
        new = tuple(UNSENT if index == key[0] else value for index, value in enumerate(new))
    return Change(kind, oid, new, old, marker)


@settings(deadline=None)
@given(
    found=st.lists(st.lists(changes(), max_size=6).map(lambda some: Transaction(tuple(some))), min_size=1, max_size=6),
    data=st.data(),
)
def test_columns_say_what_rows_say_in_batches_of_any_size(found: list[Transaction], data: st.DataObject) -> None:
    flat = _described(found)
    cuts = sorted({0, len(flat), *data.draw(st.lists(st.integers(0, len(flat)), max_size=5))})
    definitions = Definitions()
    rows, transactions, decoder = decode([flat[a:b] for a, b in pairwise(cuts)], definitions=definitions)
    expected = wire.expected(found, KEYS)
    oids = {relation.relation_id: int(relation.table[1:]) for relation in definitions.relations}
    names = ("seqno", "fragno", "operation", "oid", "values", "unsent", "old_key")
    made = [
        tuple(oids[row["relation_id"]] if name == "oid" else row[name] for name in names)
        for row in map(spelled, rows.to_pylist())
    ]
    assert made == expected.rows
    ended = [(one["seqno"], one["row_count"]) for one in transactions.to_pylist()]
    assert ended == expected.transactions
    assert decoder.is_between_transactions
    by_seqno: dict[int, int] = {}
    for row in rows.to_pylist():
        by_seqno[row["seqno"]] = by_seqno.get(row["seqno"], 0) + len(row["values"].encode())
    assert [one["byte_count"] for one in transactions.to_pylist()] == [by_seqno[seqno] for seqno, _ in ended]


def test_transactions_without_a_followed_change_take_no_seqno() -> None:
    full = Transaction((Change("I", SINGLE, ("1", "a", "b")),), xid=9, lsn=500)
    rows, transactions, decoder = decode(one_batch(Transaction(()), full, Transaction((), lsn=900)))
    assert rows.column("seqno").to_pylist() == [0]
    assert transactions.select(["seqno", "xid", "commit_offset", "end_offset"]).to_pylist() == [
        {"seqno": 0, "xid": 9, "commit_offset": 500, "end_offset": 508}
    ]
    assert decoder.safe_lsn == 908


def test_commit_time_counts_from_the_year_2000() -> None:
    change = Change("I", SINGLE, ("1", "a", "b"))
    _, transactions, _ = decode(one_batch(Transaction((change,), microseconds=1_000_001)))
    assert transactions.column("commit_time")[0].as_py().isoformat() == "2000-01-01T00:00:01.000001+00:00"


def test_truncate_is_a_row_for_each_table_and_marks_its_transaction() -> None:
    found = Transaction((Change("I", SINGLE, ("1", None, None)), wire.truncate((SINGLE, COMPOSITE), 3)))
    rows, transactions, _ = decode(one_batch(found))
    assert rows.select(["fragno", "operation", "values"]).to_pylist()[1:] == [
        {"fragno": 1, "operation": "T", "values": "cascade\trestart_identity"},
        {"fragno": 2, "operation": "T", "values": "cascade\trestart_identity"},
    ]
    assert transactions.column("marks").to_pylist() == [["truncate"]]


def test_a_truncate_without_options_alone_in_a_batch_has_no_values() -> None:
    rows, _, _ = decode(one_batch(Transaction((wire.truncate((SINGLE,)),))))
    assert rows.column("values").to_pylist() == [""]


def test_only_transactional_ddl_messages_become_rows() -> None:
    found = Transaction(
        (
            wire.message("other", b"x"),
            wire.message("parallel_apply.ddl", "ALTER TABLE ä".encode()),
            wire.message("parallel_apply.ddl", b"y", transactional=False),
        )
    )
    rows, transactions, _ = decode(one_batch(found))
    assert rows.select(["operation", "relation_id", "values", "key"]).to_pylist() == [
        {"operation": "M", "relation_id": -1, "values": "parallel_apply.ddl\tALTER TABLE ä", "key": None}
    ]
    assert transactions.column("marks").to_pylist() == [["message"]]


def test_a_message_outside_transactions_moves_the_safe_lsn_on() -> None:
    rows, _, decoder = decode([[wire.message("beat", b"", transactional=False, lsn=70)]])
    assert rows.num_rows == 0
    assert decoder.safe_lsn == 70
    assert decoder.is_between_transactions


def test_a_redefined_table_marks_the_transaction_that_first_uses_it() -> None:
    wider = wire.relation(SINGLE, "t1", (("c0", True), ("c1", False), ("c2", False), ("c3", False)))
    first = Transaction((Change("I", SINGLE, ("1", "a", "b")),))
    between = Transaction((wider, Change("I", COMPOSITE, ("a", "1", "2", "b")), Change("I", SINGLE, ("1",) * 4)))
    last = Transaction((Change("I", SINGLE, ("2",) * 4),))
    rows, transactions, _ = decode(one_batch(first, between, last))
    assert transactions.column("marks").to_pylist() == [[], ["relation"], []]
    assert line_widths(rows.column("values")).to_pylist() == [3, 4, 4, 4]


def test_the_mark_of_a_redefined_table_waits_for_a_row_in_a_later_batch() -> None:
    wider = wire.relation(SINGLE, "t1", (("c0", True), ("c1", False), ("c2", False), ("c3", False)))
    flat = _described([Transaction((wider,)), Transaction((Change("I", SINGLE, ("2",) * 4),))])
    _, transactions, _ = decode([[one] for one in flat])
    assert transactions.column("marks").to_pylist() == [["relation"]]


def test_a_changed_key_with_an_unsent_column_marks_its_transaction_across_batches() -> None:
    change = Change("U", SINGLE, ("2", UNSENT, "b"), ("1", None, None), "K")
    flat = _described([Transaction((change, Change("I", SINGLE, ("3", "a", "b"))))])
    _, transactions, _ = decode([[one] for one in flat])
    assert transactions.column("marks").to_pylist() == [["key_unsent"]]


def test_both_halves_of_a_changed_key_bear_their_own_key_and_bucket() -> None:
    inserts = tuple(Change("I", SINGLE, (key, "a", "b")) for key in ("1", "2"))
    change = Change("U", SINGLE, ("2", "a", "b"), ("1", None, None), "K")
    rows, _, _ = decode(one_batch(Transaction((*inserts, change))))
    one, two, left, arrived = rows.select(["key", "bucket", "key_order"]).to_pylist()
    assert (left, arrived) == (one, two)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ([b"Z12345"], "unknown kind 'Z'"),
        (wire.messages(Transaction((Change("I", 99, ("1",)),))), "without describing it"),
        ([RELATIONS[0], wire.encoded(Change("I", SINGLE, ("1", "a", "b")))], "outside any transaction"),
        ([*RELATIONS, *wire.messages(Transaction((Change("I", SINGLE, ("1", "a")),)))], "another width"),
        ([*RELATIONS, *wire.messages(Transaction((Change("U", KEYLESS, ("1", "a")),)))], "without a usable key"),
        ([*RELATIONS, *wire.messages(Transaction((Change("I", SINGLE, (None, "a", "b")),)))], "without its key"),
    ],
)
def test_bytes_that_are_not_pgoutput_as_we_know_it_are_refused(broken: list[bytes], says: str) -> None:
    with pytest.raises(SourceError, match=says):
        decode([broken])
