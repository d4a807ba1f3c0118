"""Two captures of one log at once: one wins each step, the other is told to try again, and nothing is lost."""

from __future__ import annotations

import pytest

from airflow_parallel_apply.pipeline.capture import loop as module
from airflow_parallel_apply.pipeline.errors import SourceError, Unavailable
from airflow_parallel_apply.pipeline.source.postgres.slot.pgoutput import Decoder
from tests.integration.source.conftest import EVERYTHING, Scene, never
from tests.support.variants import gated


@pytest.fixture
def filled(scene: Scene) -> Scene:
    scene.execute("CREATE TABLE t (id int PRIMARY KEY)")
    scene.source().prepare()
    scene.execute("INSERT INTO t SELECT generate_series(1, 10)")
    return scene


@gated
@pytest.mark.parametrize("moment", ["before the slot is looked at", "before the commit"])
def test_a_capture_that_another_one_overtook_is_to_be_tried_again(
    filled: Scene, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    slow = filled.source()
    until_offset = slow.offset()
    overtaking: list[bool] = []

    def overtake() -> None:
        if not overtaking:
            overtaking.append(True)
            filled.capture()

    open_writer, decode = module.open_writer, Decoder.decode

    def opened_then_overtaken(url: str) -> object:
        writer = open_writer(url)
        if moment == "before the slot is looked at":
            overtake()
        return writer

    def decoded_then_overtaken(self: Decoder, messages: object) -> object:
        found = decode(self, messages)  # type: ignore[arg-type]
        if not overtaking:
            overtaking.append(True)
            other = module.open_writer(filled.config.log_url)
            other.commit(other.state().captured_offset + 1)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(module, "open_writer", opened_then_overtaken)
        if moment == "before the commit":
            patch.setattr(Decoder, "decode", decoded_then_overtaken)
        with pytest.raises(Unavailable, match="another capture went on"):
            list(slow.capture(until_offset, max_changes=EVERYTHING, cancelled=never))
    filled.capture()
    assert [row["key"] for row in filled.rows()] == [str(number) for number in range(1, 11)]


def test_a_slot_above_a_log_that_nobody_continued_stays_a_loss(filled: Scene) -> None:
    filled.execute(f"SELECT pg_replication_slot_advance('{filled.slot}', pg_current_wal_lsn())")
    with pytest.raises(SourceError, match="changes are missing"):
        filled.capture()
