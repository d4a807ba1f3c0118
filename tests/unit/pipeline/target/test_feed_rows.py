"""A feed of changes stops at a new type under which older values may print another text, of which none is sent."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import PlanError
from airflow_parallel_apply.pipeline.model.change import Column, Relation, ReplicaIdentity
from airflow_parallel_apply.pipeline.source.postgres.catalog.key_kinds import key_kind
from airflow_parallel_apply.pipeline.source.postgres.catalog.value_types import value_type
from airflow_parallel_apply.pipeline.target.feed_rows import require_unaltered
from airflow_parallel_apply.pipeline.target.steps import Redefine

BELOW = {"public.short": "character varying", "public.mood": "enum"}
"""The types below a domain, and that of an enum."""


def relation(number: int, type_name: str, type_number: int | None = None) -> Relation:
    base = BELOW.get(type_name, type_name.split("(", maxsplit=1)[0])
    is_enum = base == "enum"
    kind, value = key_kind(base, is_enum=is_enum, is_deterministic=True), value_type(type_name, base, is_enum=is_enum)
    column = Column(name="c", type_name=type_name, kind=kind, number=1, value=value, type_number=type_number)
    return Relation(
        relation_id=number, schema="public", table="t", replica_identity=ReplicaIdentity.FULL, columns=(column,)
    )


@pytest.mark.parametrize(
    ("old", "new", "is_refused"),
    [
        ("integer", "bigint", False),
        ("integer", "numeric(9,0)", False),
        ("numeric(6,2)", "numeric(9,2)", False),
        ("numeric(6,2)", "numeric(6,1)", True),
        ("numeric(6,2)", "numeric", False),
        ("integer", "numeric", False),
        ("bigint", "text", False),
        ("integer", "oid", True),
        ("oid", "integer", True),
        ("timestamp(3) without time zone", "timestamp without time zone", False),
        ("timestamp(0) with time zone", "timestamp with time zone", False),
        ("timestamp without time zone", "timestamp(3) without time zone", True),
        ("timestamp without time zone", "timestamp with time zone", True),
        ("character varying(5)", "character varying(9)", False),
        ("character varying(5)[]", "text[]", False),
        ("text[]", "text", True),
        ("character varying(9)", "public.short", True),
        ("public.mood", "text", False),
        ("public.mood", "character varying(3)", True),
        ("xml", "text", True),
        ("jsonb", "text", False),
        ("character varying(5)", "text", False),
        ("character varying(9)", "character varying(5)", True),
        ("text", "character varying(5)", True),
        ("character(5)", "text", True),
        ("json", "jsonb", True),
        ("real", "double precision", True),
        ("timestamp with time zone", "text", True),
    ],
)
def test_a_type_that_may_change_older_texts_stops_a_feed(old: str, new: str, is_refused: bool) -> None:
    step = Redefine(older_id=0, newer_id=1, ddl=DdlPolicy.APPLY)
    with pytest.raises(PlanError) if is_refused else nullcontext():
        require_unaltered([step], (relation(0, old), relation(1, new)).__getitem__)


@pytest.mark.parametrize(
    ("old", "new", "is_refused"),
    [
        (("public.couple", 16400), ("public.pair", 16400), False),
        (("public.couple[]", 16400), ("app.pair[]", 16400), False),
        (("public.couple", 16400), ("public.pair", 16500), True),
        (("public.couple", None), ("public.pair", 16400), True),
        (("public.place(2)", 16400), ("public.place(3)", 16400), True),
        (("interval", None), ("interval year", None), True),
    ],
)
def test_a_type_of_another_name_alone_changes_no_text(
    old: tuple[str, int | None], new: tuple[str, int | None], is_refused: bool
) -> None:
    step = Redefine(older_id=0, newer_id=1, ddl=DdlPolicy.APPLY)
    with pytest.raises(PlanError) if is_refused else nullcontext():
        require_unaltered([step], (relation(0, *old), relation(1, *new)).__getitem__)
