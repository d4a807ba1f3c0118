"""Copies that a log names and a target does not hold: what is told depends on who else reads the log."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_parallel_apply.pipeline.check import recopied
from airflow_parallel_apply.pipeline.log.readers import LogReaderEntry


@pytest.mark.parametrize(
    ("readers", "told"),
    [
        ([("q", "server", "target")], "Run `parallel-apply recopy --pipeline q --table public.t`"),
        (
            [("q", "server", "target"), ("p", "server", "other")],
            r"others read the log\. .*: pipeline p at .* slot of its own",
        ),
        (
            [("q", "former", "target"), ("p", "server", "other")],
            r" q at there \(`rm \S*/q-\w+\.json`\), pipeline p at there \(`rm \S*/p-\w+\.json`\)\. Run `parallel-apply",
        ),
    ],
)
def test_a_copy_is_not_asked_for_where_none_can_be_made(
    monkeypatch: pytest.MonkeyPatch, readers: list[tuple[str, str, str]], told: str
) -> None:
    config: Any = SimpleNamespace(pipeline="q", log_url="log", is_served=False)
    identity = SimpleNamespace(server="server", database="target")
    target: Any = SimpleNamespace(recopied=lambda: (), identity=lambda: identity)
    lost = [SimpleNamespace(schema="public", table="t", recopy_id="1")]
    entries = [
        LogReaderEntry(pipeline=pipeline, server=server, database=database, place="there")
        for pipeline, server, database in readers
    ]
    monkeypatch.setattr(recopied, "lost_copies", lambda config, target: lost)
    monkeypatch.setattr(recopied, "read_readers", lambda url: entries)
    (finding,) = recopied.recopy_findings(config, target)
    assert re.search(told, finding.note)
