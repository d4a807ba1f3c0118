"""Findings of `check`, as a person meets them: looked for, found by their words, fixed by their commands."""

from __future__ import annotations

import subprocess
from pathlib import Path

from psycopg.conninfo import make_conninfo

from airflow_parallel_apply.pipeline.check import Checked, check_pipeline
from airflow_parallel_apply.pipeline.config import PipelineConfig, Start
from airflow_parallel_apply.pipeline.model.finding import Finding, Side
from tests.support.rig import Rig, execute


def checked_rig(source_dsn: str, target_dsn: str, directory: Path) -> Rig:
    """Two sides with one table, before a first run that finds no rows."""
    config = PipelineConfig(pipeline="checked", start=Start.EMPTY, log_url=str(directory / "log"), channels=1)
    made = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    made.both("CREATE TABLE t (id int PRIMARY KEY, v text)")
    return made


def look(rig: Rig) -> Checked:
    return check_pipeline(rig.config, rig.source, rig.target)


def found(rig: Rig, word: str) -> Finding:
    """The one finding that says so."""
    findings = look(rig).findings
    matching = [finding for finding in findings if word in finding.what]
    assert len(matching) == 1, f"{word!r} in {[finding.what for finding in findings]}"
    return matching[0]


def fix(rig: Rig, finding: Finding) -> None:
    """Do what it says, as a superuser."""
    assert finding.fix
    for command in finding.fix:
        if finding.side in (Side.SOURCE, Side.TARGET):
            dsn = rig.source_dsn if finding.side is Side.SOURCE else rig.target_dsn
            execute(make_conninfo(dsn, user="postgres"), command)
        else:
            subprocess.run(command.removeprefix("sudo "), shell=True, check=True)  # noqa: S602  # as a person would paste it
