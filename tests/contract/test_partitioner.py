"""Promises of every partitioner in Arrow; `tests/integration/spark/test_partitioner.py` asks Spark.

A distribution with a partitioner of its own puts its routing into `partitioner_cases.ROUTINGS` and runs both.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.partition.open import open_partitioner
from airflow_parallel_apply.pipeline.partition.routing import Routing
from tests.support.examples import examples
from tests.support.partitioner_cases import ROUTINGS, VALUES, batches, place, row
from tests.support.partitioners import by_letter_installed
from tests.support.variants import gated


@pytest.fixture(params=ROUTINGS, scope="module")
def routing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Routing]:
    with by_letter_installed(tmp_path_factory.mktemp("installed")):
        yield ROUTINGS[request.param]


@settings(deadline=None, max_examples=examples(60))
@given(rows=batches())
def test_a_rows_channel_depends_on_nothing_but_the_row(routing: Routing, rows: pa.RecordBatch) -> None:
    together = place(routing, rows)
    assert len(together.channels) == rows.num_rows
    assert (together.channels < routing.channels).all()
    partitioner = open_partitioner(routing)
    assert partitioner.is_whole or ((together.channels >= 0).all() and together.shards is None)
    for index in range(rows.num_rows):
        alone = place(routing, rows.slice(index, 1))
        assert alone.channels[0] == together.channels[index]
        if together.shards is not None and alone.shards is not None:
            assert alone.shards[0] == together.shards[index]


@gated
@settings(deadline=None, max_examples=examples(60))
@given(values=VALUES, number=st.sampled_from([1, 3]), seqnos=st.tuples(st.integers(0, 99), st.integers(0, 99)))
def test_one_key_has_one_channel_whatever_its_text(
    routing: Routing, values: tuple[str, ...], number: int, seqnos: tuple[int, int]
) -> None:
    name, whole, amount, weight, padded, made = values
    other_amount = amount + "00" if "." in amount else f"{amount}.0" if amount.lstrip("-").isdigit() else amount
    other_weight = {"0": "-0", "-0": "0"}.get(weight, weight)
    other = (name, whole, other_amount, other_weight, f"{padded.rstrip()}  ", made)
    rows = [row(seqno, 0, number, list(texts)) for seqno, texts in zip(seqnos, (values, other), strict=True)]
    assert rows[0]["key"] == rows[1]["key"]
    found = place(routing, pa.RecordBatch.from_pylist(rows, schema=ROWS))
    assert found.channels[0] == found.channels[1]


def test_the_routing_comes_back_from_its_json_with_its_digest(routing: Routing) -> None:
    again = Routing.from_json(routing.to_json())
    assert (again, again.digest) == (routing, routing.digest)


def test_no_two_routings_have_one_digest() -> None:
    assert len({routing.digest for routing in ROUTINGS.values()}) == len(ROUTINGS)


def test_the_digest_of_a_pipeline_by_key_is_that_of_the_first_release() -> None:
    assert Routing(channels=4).digest == "55141ad01ff8f243"
