"""Arrays as parameters come to the server as they are."""

from __future__ import annotations

import psycopg

from airflow_parallel_apply.postgres.arrays import named, numbers, texts

_AWKWARD = ["plain", "", "NULL", 'a"b', "a\\b", "{a,b}", " a ", "a\nb", "ä%s"]


def test_arrays_come_as_they_are(target_dsn: str) -> None:
    with psycopg.connect(target_dsn) as connection:
        found = connection.execute(
            "SELECT %(texts)s::text[], %(numbers)s::oid[], %(none)s::text[], %(schemas)s::text[], %(tables)s::text[]",
            {
                "texts": texts(_AWKWARD),
                "numbers": numbers([0, 2**32 - 1]),
                "none": texts([]),
                **named(("public", name) for name in _AWKWARD),
            },
        ).fetchone()
    assert found == (_AWKWARD, [0, 2**32 - 1], [], ["public"] * len(_AWKWARD), _AWKWARD)
