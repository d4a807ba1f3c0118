"""Enums that tools make anew beside the former ones, whose names they take: followed as they are sent."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.config import DdlPolicy
from tests.support.ddl_messages import ddl, install
from tests.support.rig import Rig
from tests.support.variants import gated

_RETYPED = "ALTER TABLE u ALTER m TYPE {0} USING m::text::{0}"
_NEW_NAMES = ("CREATE TYPE new AS ENUM ('a', 'b')", _RETYPED.format("new"))
_OLD_NAMES = ("ALTER TYPE mood RENAME TO old", "CREATE TYPE mood AS ENUM ('a', 'b')", _RETYPED.format("mood"))
RECIPES = {
    "dropped": (*_NEW_NAMES, "DROP TYPE mood", "ALTER TYPE new RENAME TO mood"),
    "renamed, in Prisma's order": (
        *_NEW_NAMES, "ALTER TYPE mood RENAME TO old", "ALTER TYPE new RENAME TO mood", "DROP TYPE old",
    ),
    "renamed, in TypeORM's order": (*_OLD_NAMES, "DROP TYPE old"),
}  # fmt: skip


@gated
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("recipe", RECIPES)
def test_an_enum_that_is_made_anew_and_takes_the_former_one_s_name_is_followed_as_it_is_sent(
    rig: Rig, recipe: str, at_once: bool
) -> None:
    rig = rig.having(ddl=DdlPolicy.APPLY)
    install(rig.source_dsn)
    rig.both("CREATE TYPE mood AS ENUM ('a')", "CREATE TABLE u (id integer PRIMARY KEY, m mood DEFAULT 'a')")
    rig.prepare()
    rig.write("INSERT INTO u VALUES (1, 'a')")
    rig.run()
    texts = ("ALTER TABLE u ALTER m DROP DEFAULT", *RECIPES[recipe], "ALTER TABLE u ALTER m SET DEFAULT 'b'")
    sent = [(text, ddl(text)) for text in texts]
    for transaction in [[one for pair in sent for one in pair]] if at_once else sent:
        rig.transaction(*transaction)
    rig.write("INSERT INTO u VALUES (2, 'b')")
    rig.run()
    comparison = rig.comparison()
    assert comparison.equal, comparison
