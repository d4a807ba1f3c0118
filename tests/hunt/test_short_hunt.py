"""A short hunt: scripts of what former hunts found, and some seeds. `make hunt` is the long one."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.hunt.by_hand import repeated
from tests.hunt.hunter import Hunter
from tests.hunt.meanwhile import found
from tests.hunt.runs import PLACES
from tests.hunt.shrink import script, shrink
from tests.hunt.step import Step, Trial
from tests.hunt.trials import trial
from tests.support.variants import variants

FOLDER: Final = Path(__file__).parent / "scripts"
SCRIPTS: Final = sorted(path.stem for path in FOLDER.glob("*.json"))
SELDOM: Final = {
    "identity_came_and_went",
    "not_null_that_is_not_valid",
    "partitioned_tables_swapped",
    "table_archived_and_told",
    "table_moved_out_of_the_patterns",
    "tables_swapped",
}
"""Those that another one is much like, or that a test of a migration is of as well."""
SEEDS: Final = ("41",)
"""Trials that end green and equal; another grammar makes others of them."""


@pytest.fixture(scope="module")
def hunter() -> Iterator[Hunter]:
    one = Hunter()
    yield one
    one.close()


@pytest.mark.parametrize("name", variants(SCRIPTS, seldom=SELDOM, gated={*SCRIPTS} - SELDOM))
def test_what_a_hunt_once_found_is_not_found_again(hunter: Hunter, name: str) -> None:
    outcome = hunter.play(Trial.load(FOLDER / f"{name}.json"))
    assert not outcome.kind, outcome.what


@pytest.mark.parametrize("seed", SEEDS)
def test_green_means_equal_for_seeds_of_before(hunter: Hunter, seed: str) -> None:
    outcome = hunter.play(trial(seed))
    assert not outcome.kind, outcome.what


@pytest.mark.long
@pytest.mark.skipif(bool(os.environ.get("CI")), reason="continuous integration fails for what was changed only")
def test_green_means_equal_for_a_seed_of_today(hunter: Hunter, capsys: pytest.CaptureFixture[str]) -> None:
    seed = os.environ.get("HUNT_TRIAL") or str(random.SystemRandom().randrange(10**9))
    with capsys.disabled():
        print(f"\nHUNT_TRIAL={seed}", flush=True)
    outcome = hunter.play(trial(seed))
    assert not outcome.kind, f"{outcome.what}\n{script(trial(seed))}"


def test_a_trial_is_the_same_for_the_same_seed_and_comes_back_from_its_file(tmp_path: Path) -> None:
    for seed in map(str, range(200)):
        made = trial(seed)
        made.save(tmp_path / "trial.json")
        assert Trial.load(tmp_path / "trial.json") == made == trial(seed)


def test_steps_of_rows_alone_are_told_from_those_that_may_leave_a_definition_untold() -> None:
    rows = ("INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING", "UPDATE t SET id = 2", "DELETE FROM t")
    assert Step(do="source", sql=rows).is_of_rows
    assert not Step(do="session", sql=rows).is_of_rows
    for statement in ("ALTER TABLE t ADD c text", "DO $$ BEGIN END $$", "COMMIT PREPARED 'held'", "TRUNCATE t"):
        assert not Step(do="transaction", sql=(*rows, statement)).is_of_rows


@pytest.mark.parametrize("place", PLACES)
def test_a_place_of_the_hunt_is_a_function_of_the_product(place: str) -> None:
    owner, name = found(place)
    assert callable(getattr(owner, name))


def test_a_loss_at_the_target_is_seen(hunter: Hunter) -> None:
    making = Step(do="source", sql=("CREATE TABLE t (id integer PRIMARY KEY)", "INSERT INTO t VALUES (1)"))
    steps = (making, Step(do="run"), Step(do="target", sql=("DELETE FROM t",)), Step(do="run"))
    outcome = hunter.play(Trial(seed="loss", steps=steps))
    assert outcome.kind == "green and different"
    assert "public.t (id): 1 rows, 0 at the target; missing '1'" in outcome.what


@pytest.mark.long
def test_what_happens_to_a_table_that_nobody_follows_is_seen_and_one_that_is_followed_again_is_let_go(
    hunter: Hunter,
) -> None:
    tables = ("CREATE TABLE t (id integer PRIMARY KEY)", "CREATE TABLE o (id integer PRIMARY KEY)")
    keep = Step(do="target", options={"keeps": ["public.t"]})
    leave, take = (Step(do=do, options={"table": "public.t"}, names=("public.t",)) for do in ("leave out", "take in"))
    row, run = Step(do="source", sql=("INSERT INTO t SELECT coalesce(max(id), 0) + 1 FROM t",)), Step(do="run")
    followed = (Step(do="source", sql=tables), row, run, keep, row, run, leave, run, keep, take, row, run, leave, run)
    assert not hunter.play(Trial(seed="followed", steps=followed)).kind
    emptied = Step(do="target", sql=("CREATE SCHEMA away", "ALTER TABLE t SET SCHEMA away", "DELETE FROM away.t"))
    outcome = hunter.play(Trial(seed="written", steps=(*followed[:9], emptied, run)))
    assert outcome.what == "public.t, which nobody follows, had 2 rows and has 0"


def test_what_is_found_is_shrunk_to_the_statements_that_make_it() -> None:
    steps = [Step(do="source", sql=tuple(f"SELECT {number}, {place}" for place in range(4))) for number in range(20)]
    needed = {"SELECT 3, 1", "SELECT 17, 2"}
    small = shrink(
        Trial(seed="", steps=tuple(steps)),
        lambda one: needed <= {statement for step in one.steps for statement in step.sql},
        seconds=60,
    )
    assert [step.sql for step in small.steps] == [("SELECT 3, 1",), ("SELECT 17, 2",)]


def test_a_hand_repeats_what_the_error_names_and_nothing_for_the_word_of_a_cause() -> None:
    drop, index = ("ALTER TABLE t1 DROP COLUMN n", "CREATE UNIQUE INDEX i ON t0 (id)")
    steps = [
        Step(do="source", names=("t1", "n", "DDL"), by_hand=(drop,)),
        Step(do="source", names=("t0", "i", "DDL"), by_hand=(index,)),
    ]
    told = 'the target refuses the DDL: ALTER TABLE t0 ADD PRIMARY KEY USING INDEX i: index "i" does not exist'
    assert repeated(steps, told) == [index]
    rights = Step(do="target", names=("permission denied",), by_hand=("GRANT ALL ON SCHEMA public TO plain",))
    assert repeated([*steps, rights], "permission denied for schema public") == list(rights.by_hand)
