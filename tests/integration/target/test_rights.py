"""Rights that are taken from the target's role in the middle of a run: the hint gives them back, by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from airflow_parallel_apply.pipeline.errors import FatalError
from tests.support.plain_rig import PlainRig, plain_rig
from tests.support.rig import execute

TAKEN = {
    "a table": 'REVOKE UPDATE, INSERT ON "T t" FROM PUBLIC, {role}',
    "a schema": "REVOKE USAGE ON SCHEMA public FROM PUBLIC, {role}",
}


@pytest.fixture
def rig(source_dsn: str, target_dsn: str, tmp_path: Path) -> Iterator[PlainRig]:
    with plain_rig(source_dsn, target_dsn, tmp_path) as found:
        yield found


@pytest.mark.parametrize("what", TAKEN)
def test_a_right_that_is_taken_is_granted_again_by_the_hint(rig: PlainRig, what: str) -> None:
    owner = psycopg.conninfo.make_conninfo(rig.target_dsn, user="postgres")
    rig.both('CREATE TABLE "T t" (id int PRIMARY KEY, v text)')
    rig.prepare()
    rig.write("""INSERT INTO "T t" VALUES (1, 'a')""")
    rig.run()
    rig.write("""UPDATE "T t" SET v = 'b'""", """INSERT INTO "T t" VALUES (2, 'c')""")
    rig.capture("r")
    opened = rig.open("r")
    execute(owner, TAKEN[what].format(role=psycopg.conninfo.conninfo_to_dict(rig.target_dsn)["user"]))
    with pytest.raises(FatalError, match="permission denied for") as caught:
        rig.close(opened, rig.apply(opened))
    found = re.search(r"Run (GRANT .*?) at the target", str(caught.value))
    assert found is not None, caught.value
    execute(owner, found[1])
    rig.run()
    assert rig.comparison().equal
