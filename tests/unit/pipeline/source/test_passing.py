"""Changes that a later copy of their table has made superfluous: told by the oid, not by a name that others bore."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_parallel_apply.pipeline.log.protocol import PassedOver
from airflow_parallel_apply.pipeline.source.postgres.proof.registration import RegisteredTable, Registration
from airflow_parallel_apply.pipeline.source.postgres.slot.passing import Passing
from tests.unit.pipeline.source import wire
from tests.unit.pipeline.source.wire import Change, Transaction

COPIED, OTHER, FORMER = 5, 6, 7
REGISTRATION = Registration(
    server="1",
    tables=tuple(
        RegisteredTable(
            oid=oid, schema="public", table=name, kind="r", is_partition=False, membership=1, publication=1, touched=""
        )
        for oid, name in ((COPIED, "t"), (OTHER, "u"))
    ),
    left=((FORMER, 1000),),
)


@pytest.mark.parametrize("oid", [COPIED, None])
def test_a_followed_table_that_bore_the_name_of_one_that_was_copied_anew_keeps_its_changes(oid: int | None) -> None:
    """An older version knew the copied table by its name alone."""
    copy = PassedOver(schema="public", table="t", below_offset=500, recopy_id="r", oid=oid)
    passing = Passing([copy], REGISTRATION, captured_offset=10)
    sent = wire.messages(
        Transaction(
            changes=tuple(
                one
                for number in (COPIED, OTHER, FORMER)
                for one in (wire.relation(number, "t", (("c", True),)), Change("I", number, new=(b"1",)))
            )
        )
    )
    begin, _, _, described, inserted, _, _, commit = sent
    assert passing.kept(pa.array(sent, pa.binary())).to_pylist() == [begin, described, inserted, commit]
