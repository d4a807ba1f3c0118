"""The second look of a recopy, under locks: it is as new as it can be, and cheap."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from airflow_parallel_apply.pipeline.copy.postgres import renames_ahead
from airflow_parallel_apply.pipeline.source.postgres.setup import recopying


def test_where_nothing_is_renamed_no_marks_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MagicMock()
    log.state.return_value = SimpleNamespace(relations=(), last_seqno=9)
    monkeypatch.setattr(renames_ahead, "open_reader", lambda _: log)
    renames_ahead.require_no_renaming(MagicMock(), MagicMock(), [], [])
    log.transactions.assert_not_called()


def test_a_table_that_is_made_again_meanwhile_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[SimpleNamespace] = []
    monkeypatch.setattr(recopying, "list_tables", lambda *_: there)
    monkeypatch.setattr(recopying.Recopying, "_passed_over", lambda *_: ("t",))
    found = recopying.Recopying(MagicMock(), MagicMock(), [("public", "t")], MagicMock(), lost=tuple)
    assert found.followed() == ()
    assert found.gone == ("t",)
    there.append(SimpleNamespace(name="public.t", schema="public", table="t", is_published=False))
    assert found.followed() == (("public", "t"),)
    assert found.gone == ()
