"""DDL by which rows that are there may read otherwise is known however it is written."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.target.altering import gives_other_values


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE t ALTER v TYPE text USING upper(v)",
        "ALTER TABLE t ALTER COLUMN v$1 SET DATA TYPE bigint",
        'ALTER TABLE t ALTER "a ""b" TYPE text',
        "ALTER TABLE t ALTER COLUMN type TYPE text",
        "ALTER TABLE t ALTER COLUMN v /* as\nold */ TYPE -- wider\n text",
        "ALTER TABLE t ALTER g SET EXPRESSION AS (a + 1)",
        "ALTER TYPE mood /* was */ RENAME /* it */ VALUE 'sad' TO 'blue'",
        "ALTER TYPE pair ADD ATTRIBUTE c integer",
        "DO $$ BEGIN EXECUTE format('ALTER TABLE t ALTER %I TYPE text', 'v'); END $$",
        "DO $$ BEGIN EXECUTE 'ALTER TABLE t ALTER ' || quote_ident('v') || ' TYPE text'; END $$",
    ],
)
def test_it_is_found(text: str) -> None:
    assert gives_other_values(text)


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE t ADD type text",
        "ALTER TABLE t RENAME COLUMN v TO type",
        "ALTER TABLE t ALTER COLUMN type SET DEFAULT 'a'",
        "ALTER TABLE t ALTER type DROP NOT NULL",
        "ALTER TABLE type ADD v text",
        "ALTER TYPE mood ADD VALUE 'glad'",
        "CREATE TRIGGER alter_type BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION keep()",
        "DO $$ BEGIN EXECUTE format('ALTER TABLE %I ADD v text', 't'); END $$",
    ],
)
def test_other_ddl_is_let_through(text: str) -> None:
    assert not gives_other_values(text)
