"""Enums that tools make anew beside the former ones, whose names they take: followed as they are sent."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from tests.support.ddl_messages import ddl, install
from tests.support.rig import Rig
from tests.support.variants import gated

_NEW_NAMES = ("CREATE TYPE new AS ENUM ('a', 'b')", "ALTER TABLE u ALTER m TYPE new{0} USING m::text::new{0}")
_OLD_NAMES = (
    "ALTER TYPE mood RENAME TO old", "CREATE TYPE mood AS ENUM ('a', 'b')",
    "ALTER TABLE u ALTER m TYPE mood{0} USING m::text::mood{0}",
)  # fmt: skip
RECIPES = {
    "dropped": (*_NEW_NAMES, "DROP TYPE mood", "ALTER TYPE new RENAME TO mood"),
    "renamed, in Prisma's order": (
        *_NEW_NAMES, "ALTER TYPE mood RENAME TO old", "ALTER TYPE new RENAME TO mood", "DROP TYPE old",
    ),
    "renamed, in TypeORM's order": (*_OLD_NAMES, "DROP TYPE old"),
}  # fmt: skip


@gated
@pytest.mark.parametrize(("at_once", "of_arrays"), [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("recipe", RECIPES)
def test_an_enum_that_is_made_anew_and_takes_the_former_one_s_name_is_followed_as_it_is_sent(
    rig: Rig, recipe: str, at_once: bool, of_arrays: bool
) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    install(rig.source_dsn)
    array, a, b = ("[]", "{a}", "{b}") if of_arrays else ("", "a", "b")
    rig.both("CREATE TYPE mood AS ENUM ('a')", f"CREATE TABLE u (id integer PRIMARY KEY, m mood{array} DEFAULT '{a}')")
    rig.prepare()
    rig.write(f"INSERT INTO u VALUES (1, '{a}')")
    rig.run()
    steps = (one.format(array) for one in RECIPES[recipe])
    texts = ("ALTER TABLE u ALTER m DROP DEFAULT", *steps, f"ALTER TABLE u ALTER m SET DEFAULT '{b}'")
    sent = [(text, ddl(text)) for text in texts]
    for transaction in [[one for pair in sent for one in pair]] if at_once else sent:
        rig.transaction(*transaction)
    rig.write(f"INSERT INTO u VALUES (2, '{b}')")
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison


@gated
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("recipe", RECIPES)
def test_one_of_two_columns_is_followed_in_the_same_way(rig: Rig, recipe: str, at_once: bool) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    install(rig.source_dsn)
    rig.both("CREATE TYPE mood AS ENUM ('a')", "CREATE TABLE u (id integer PRIMARY KEY, m mood, n mood)")
    rig.prepare()
    rig.write("INSERT INTO u VALUES (1, 'a', 'a')")
    rig.run()
    steps = [one.format("") for one in RECIPES[recipe]]
    texts = [
        text for one in steps for text in dict.fromkeys((one, one.replace("ALTER m", "ALTER n").replace("m::", "n::")))
    ]
    sent = [(text, ddl(text)) for text in texts]
    for transaction in [[one for pair in sent for one in pair]] if at_once else sent:
        rig.transaction(*transaction)
    rig.write("INSERT INTO u VALUES (2, 'b', 'b')")
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison
