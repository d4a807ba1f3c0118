"""Commands of `parallel-apply` as a hint prints them, with a pipeline's own options where the text leaves them out."""

from __future__ import annotations

import re
import shlex

from typer.testing import CliRunner, Result

from tests.support.rig import Rig


def invoked(rig: Rig, text: str) -> Result:
    """The outcome of a command; one that asks is told yes."""
    from airflow_parallel_apply.cli import app

    words, config = shlex.split(text.strip())[1:], rig.config
    options: dict[str, list[str]] = {
        "--pipeline": [config.pipeline], "--source": [rig.source_dsn],
        "--target": [rig.target_dsn], "--log-url": [config.log_url],
        "--tables": list(config.tables.include), "--ddl": [config.ddl.value],
        "--channels": [str(config.channels)],
        **({"--slot": [config.slot]} if config.slot else {}),
        **({} if rig.queue is None else {"--queue": [rig.queue.dsn]}),
        **({} if rig.ledger_dsn is None else {"--ledger": [rig.ledger_dsn]}),
    }  # fmt: skip
    runner = CliRunner()
    usage = re.sub(r"\x1b\[[0-9;]*m", "", runner.invoke(app, [words[0], "--help"], env={"COLUMNS": "250"}).output)
    for name, values in options.items():
        if name in usage and name not in words:
            words += [word for value in values for word in (name, value)]
    words += ["--yes"] if "--yes" in usage and "--yes" not in words else []
    return runner.invoke(app, words)
