"""Trials with targets of other kinds: what their grammar leaves out, and a few of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_parallel_apply.demo.mariadb import missing_programs
from tests.hunt.hunter import Hunter
from tests.hunt.step import Step, Trial
from tests.hunt.targets.alterations import Alteration, alterations
from tests.hunt.targets.grammar import ABLE
from tests.hunt.targets.open import ANY, NAMES, POSTGRES, fresh_seed, named
from tests.hunt.trials import trial

OTHERS = tuple(name for name in NAMES if name != POSTGRES)
needs_mariadb = pytest.mark.skipif(bool(missing_programs()), reason="MariaDB is not installed here")


@pytest.fixture(scope="module")
def hunter() -> Iterator[Hunter]:
    one = Hunter()
    yield one
    one.close()


def test_a_seed_names_its_target_and_one_without_a_name_is_of_postgresql() -> None:
    assert [named(fresh_seed("7.3", name)) for name in NAMES] == list(NAMES)
    assert fresh_seed("7.3", POSTGRES) == "7.3"
    assert {named(fresh_seed(f"7.{number}", ANY)) for number in range(100)} >= {*NAMES} - {"mariadb"}
    with pytest.raises(ValueError, match="HUNT_TARGET=oracle"):
        fresh_seed("7.3", "oracle")


@pytest.mark.parametrize("name", OTHERS)
def test_a_trial_has_nothing_that_its_target_cannot_do(name: str, tmp_path: Path) -> None:
    refused = {f"{value}::{kind}" for kind, values in ABLE[name].refused.items() for value in values}
    for number in range(150):
        made = trial(f"{name}:{number}")
        made.save(tmp_path / "trial.json")
        assert Trial.load(tmp_path / "trial.json") == made == trial(f"{name}:{number}")
        assert made.parameters["ddl"] in ABLE[name].ddl
        assert "both" not in {step.do for step in made.steps}
        for step in (step for step in made.steps if step.kind != "value refused"):
            assert step.do not in ("target", "recopy")
            assert "recopy" not in (step.options.get("do"), step.options.get("of"))
            found = [value for value in refused for text in step.sql if re.search(rf"{re.escape(value)}(?!\w)", text)]
            assert found == []


def test_simple_statements_are_read_as_alterations_and_others_are_left_to_the_target() -> None:
    read = alterations(
        (
            "ALTER TABLE shop.t ADD COLUMN n integer NOT NULL DEFAULT 5",
            "ALTER TABLE shop.t RENAME COLUMN n TO m",
            "ALTER TABLE shop.t DROP COLUMN m",
            "ALTER TABLE shop.t REPLICA IDENTITY FULL",
            "VACUUM FULL shop.t",
        )
    )
    place = {"schema": "shop", "table": "t"}
    assert list(read) == [
        Alteration(**place, action="add", column="n", type_name="integer", default="5"),
        Alteration(**place, action="rename", column="n", new_name="m"),
        Alteration(**place, action="drop", column="m"),
    ]


@pytest.mark.long
@needs_mariadb
def test_a_loss_in_mariadb_is_seen(hunter: Hunter) -> None:
    steps = (
        Step(do="source", sql=("CREATE TABLE t (id integer PRIMARY KEY)",)),
        Step(do="tables", options={"may_refuse": []}),
        Step(do="run"),
        Step(do="source", sql=("INSERT INTO t VALUES (1)",)),
        Step(do="run"),
        Step(do="target", sql=("DELETE FROM t",)),
        Step(do="run"),
    )
    outcome = hunter.play(Trial(seed="loss", parameters={"target": "mariadb", "start": "empty"}, steps=steps))
    assert outcome.kind == "green and different"
    assert "public.t: 1 rows, 0 at the target" in outcome.what
