"""Values that are made quickly are made as the dataclass says."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from airflow_parallel_apply.queue import Change, Insert, Task, TaskRef
from airflow_parallel_apply.queue.ids import drawn_ids, id_of
from airflow_parallel_apply.queue.values import maker_of, quickly_made, replacing


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    one: int
    two: str = "two"
    three: int | None = None


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Quick:
    one: int
    two: str = "two"
    three: int | None = None


make = maker_of(Quick)


@pytest.mark.parametrize("given", [{"one": 1}, {"one": 1, "two": "b"}, {"three": 3, "one": 1, "two": "b"}])
def test_a_value_made_quickly_has_the_fields_of_one_that_is_not(given: dict[str, Any]) -> None:
    quick, plain = Quick(**given), Plain(**given)
    assert [getattr(quick, one.name) for one in fields(Quick)] == [getattr(plain, one.name) for one in fields(Plain)]
    assert quick == Quick(**given)
    assert hash(quick) == hash(Quick(**given))
    assert replace(quick, one=2) == Quick(**{**given, "one": 2})
    assert inspect.signature(Quick) == inspect.signature(Plain)
    made = make(**given)
    assert (type(made), made) == (Quick, quick)


@pytest.mark.parametrize("given", [{}, {"one": 1, "four": 4}, {"two": "b"}])
def test_a_value_made_quickly_refuses_what_one_that_is_not_refuses(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError) as plain:
        Plain(**given)
    with pytest.raises(TypeError) as quick:
        Quick(**given)
    assert str(quick.value) == str(plain.value).replace("Plain", "Quick")
    with pytest.raises(TypeError):
        make(**given)
    with pytest.raises(TypeError):
        Quick(1)  # type: ignore[misc]


def test_replaced_fields_are_new_and_the_others_as_they_were() -> None:
    replaced = replacing(Quick, "three", "one")
    before = Quick(one=1, two="b")
    after = replaced(before, one=4, three=3)
    assert (type(after), after) == (Quick, replace(before, one=4, three=3))
    assert before == Quick(one=1, two="b")
    with pytest.raises(TypeError):
        replaced(before, one=4)
    with pytest.raises(FrozenInstanceError):
        after.two = "c"  # type: ignore[misc]


@pytest.mark.parametrize("kind", [Task, TaskRef, Insert, Change])
def test_nobody_writes_a_value_that_was_made_quickly(kind: Any) -> None:
    content = {one.name: None for one in fields(kind)}
    for made in (kind(**content), maker_of(kind)(**content), replacing(kind, *content)(kind(**content), **content)):
        for one in fields(kind):
            with pytest.raises(FrozenInstanceError):
                setattr(made, one.name, 1)
            with pytest.raises(FrozenInstanceError):
                delattr(made, one.name)


def test_an_id_from_bytes_is_the_uuid_of_these_bytes() -> None:
    expected = uuid4()
    made = id_of(expected.bytes)
    assert (made, hash(made), str(made), made.is_safe) == (expected, hash(expected), str(expected), expected.is_safe)
    with pytest.raises(TypeError):
        made.int = 1  # type: ignore[misc]


def test_drawn_ids_are_random_uuids() -> None:
    drawn = drawn_ids(500)
    assert len(set(drawn)) == 500
    assert {(one.version, one.variant) for one in drawn} == {(4, UUID(int=0, version=4).variant)}
    assert drawn_ids(0) == []
