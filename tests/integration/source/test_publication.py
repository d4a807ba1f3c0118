"""The publication is the pipeline's own: what somebody else did to it is told, with what leads on."""

from __future__ import annotations

import re
from typing import Any

import pytest

from airflow_parallel_apply.pipeline.config import TablePatterns
from airflow_parallel_apply.pipeline.errors import ConfigurationError, SourceError
from airflow_parallel_apply.pipeline.source.postgres.setup.prepare import Preparation
from airflow_parallel_apply.pipeline.source.protocol import SourceChanged
from tests.integration.source.conftest import Scene
from tests.support.variants import gated


def test_a_published_table_that_the_patterns_left_is_refused_by_name(scene: Scene) -> None:
    scene.execute("CREATE TABLE a (id int)", "CREATE TABLE b (id int)")
    scene.source().prepare()
    with pytest.raises(ConfigurationError, match=r"public\.b"):
        scene.source(tables=TablePatterns(include=("public.a",))).prepare()


def test_an_alteration_of_somebody_else_just_before_ours_does_not_pass_for_ours(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    scene.source().prepare()
    scene.execute(
        "INSERT INTO t VALUES (1)",
        "CREATE TABLE fresh (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id) STORED)",
        "ALTER TABLE fresh REPLICA IDENTITY FULL",
    )
    follow, options = Preparation.follow, ["insert", "insert, update, delete, truncate"]

    def behind(self: Preparation, *given: Any) -> tuple[str, ...]:
        while options:
            scene.execute(f"ALTER PUBLICATION {scene.slot} SET (publish = '{options.pop(0)}')", "UPDATE t SET id = 2")
        return follow(self, *given)

    monkeypatch.setattr(Preparation, "follow", behind)
    with pytest.raises(SourceChanged, match="was altered just now"):
        scene.source().prepare()
    with pytest.raises(SourceError, match=r"was altered, so changes of public\.t may be missing"):
        scene.source().prepare()


def test_a_dropped_publication_is_refused(scene: Scene) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    scene.source().prepare()
    scene.execute(f"DROP PUBLICATION {scene.slot}")
    with pytest.raises(SourceError, match=r"publication .* is gone"):
        scene.source().prepare()
    scene.execute(f"CREATE PUBLICATION {scene.slot} FOR ALL TABLES")
    with pytest.raises(SourceError, match="made or changed by somebody else"):
        scene.source().prepare()


def test_a_publication_that_was_renamed_has_its_name_again_as_the_hint_says(scene: Scene) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    scene.source().prepare()
    scene.execute("INSERT INTO t VALUES (1)", f'ALTER PUBLICATION {scene.slot} RENAME TO "For the lake"')
    with pytest.raises(SourceError, match="is called For the lake now") as refused:
        scene.source().prepare()
    found = re.search(r"Run (ALTER PUBLICATION .*?) at the source", refused.value.hint or "")
    assert found is not None
    scene.execute(found[1])
    with pytest.raises(SourceError, match="recopy"):
        scene.source().prepare()


@gated
@pytest.mark.parametrize(
    "also",
    [
        (),
        ("ALTER PUBLICATION {slot} SET (publish = 'insert')",),
        ("DROP PUBLICATION {slot}", "CREATE PUBLICATION {slot} FOR TABLE t"),
    ],
)
def test_a_comment_that_was_overwritten_is_written_again_as_the_hint_says(scene: Scene, also: tuple[str, ...]) -> None:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    scene.source().prepare()
    scene.execute("INSERT INTO t VALUES (1)", *(statement.format(slot=scene.slot) for statement in also))
    scene.execute(f"COMMENT ON PUBLICATION {scene.slot} IS 'for the warehouse'")
    with pytest.raises(SourceError, match="its comment does not name log") as refused:
        scene.source().prepare()
    found = re.search(r"Run (COMMENT ON PUBLICATION .*?) at the source", refused.value.hint or "")
    assert found is not None
    scene.execute(found[1])
    if also:
        with pytest.raises(SourceError, match="recopy"):
            scene.source().prepare()
        return
    scene.source().prepare()
    scene.capture()
    assert scene.shown("operation", "key") == [("I", "1")]
