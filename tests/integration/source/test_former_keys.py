"""Keys, buckets and orders are those of the version before, for each type: a key stays in its channel (law 1)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from airflow_parallel_apply.pipeline.log.open import open_reader
from tests import former
from tests.integration.source.conftest import Scene
from tests.log_batches import spelled

COMPARED = ("operation", "bucket", "key", "key_order", "values", "unsent", "old_key")


def rows_of(url: str) -> dict[str, list[dict[str, Any]]]:
    """A log's rows by table, in order, without what another capture numbers otherwise."""
    reader = open_reader(url)
    state = reader.state()
    names = {relation.relation_id: relation.name for relation in state.relations}
    found: dict[str, list[dict[str, Any]]] = {}
    for batch in reader.rows(-1, state.last_seqno, in_order=True):
        for row in batch.to_pylist():
            shown = {name: value for name, value in spelled(row).items() if name in COMPARED}
            relation = next((one for one in state.relations if one.relation_id == row["relation_id"]), None)
            if relation is None or not (relation.key_indexes or relation.by_image):
                # By its place in the log.
                del shown["bucket"]
            found.setdefault(names.get(row["relation_id"], ""), []).append(shown)
    return found


def test_a_history_is_captured_as_the_version_before_did(scene: Scene, tmp_path: Path) -> None:
    scene.execute(*former.SETUP)
    scene.source().prepare()
    scene.execute(*former.CHANGES[:20])
    scene.capture()
    scene.execute(*former.CHANGES[20:])
    scene.capture()
    before = rows_of(shutil.copytree(former.LOG, tmp_path / "former").as_posix())
    now = rows_of(scene.config.log_url)
    assert len(before) == 40
    assert now.keys() == before.keys()
    for table, rows in before.items():
        assert now[table] == rows, table
    definitions = open_reader(str(tmp_path / "former")).state().relations
    for old, new in zip(definitions, scene.state().relations, strict=True):
        assert new.is_as(old), f"a pipeline that goes on would see {old.name} redefined"
