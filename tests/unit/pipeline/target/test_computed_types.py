"""Types of computed columns: under which ones an expression has the source's texts."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.target.postgres.catalog.fit import computes_alike


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("public.mood", "public.mood"), ("integer", "bigint"), ("text", "character varying"),
        ("numeric(6,2)", "numeric(8,2)"),
    ],
)  # fmt: skip
def test_a_type_that_rounds_and_cuts_alike_has_the_same_texts(source: str, target: str) -> None:
    assert computes_alike(source, target)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("integer", "numeric"), ("numeric(6,2)", "numeric"), ("numeric", "numeric(6,2)"),
        ("numeric(8,2)", "numeric(6,2)"),
        ("numeric(6,2)", "text"), ("character varying(3)", "text"), ("real", "double precision"),
    ],
)  # fmt: skip
def test_a_type_that_keeps_more_of_what_is_computed_has_not(source: str, target: str) -> None:
    assert not computes_alike(source, target)
