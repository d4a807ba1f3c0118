"""Starts Airflow's services from one process that has imported Airflow once: half of their start is that import.

`python -m airflow_parallel_apply.demo.prefork FOLDER '{"scheduler": ["scheduler", "--skip-serve-logs"], …}'` forks a
process for each service, as if `airflow scheduler --skip-serve-logs` was called, with its output in
`FOLDER/scheduler.log`. Their process ids are in `FOLDER/pids.json` from when all are forked. It stays to reap them.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

PIDS: Final = "pids.json"

# What the services have in common. None of it starts a thread or opens a connection: that would not survive a fork.
_SHARED: Final = (
    "airflow.__main__",
    "airflow.cli.cli_parser",
    "airflow.cli.commands.api_server_command",
    "airflow.cli.commands.dag_processor_command",
    "airflow.cli.commands.scheduler_command",
    "airflow.cli.commands.triggerer_command",
)


def main(folder: Path, services: Mapping[str, Sequence[str]]) -> None:
    """Import, fork, and wait until all services have ended. SIGTERM is passed on to them."""
    for module in _SHARED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # or each collection in a child would copy the pages that they share
    pids = {name: _fork(folder / f"{name}.log", arguments) for name, arguments in services.items()}

    def pass_on(number: int, _frame: FrameType | None) -> None:
        for pid in pids.values():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    signal.signal(signal.SIGTERM, pass_on)
    draft = folder / f"{PIDS}.new"
    draft.write_text(json.dumps(pids))
    draft.replace(folder / PIDS)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def _fork(log: Path, arguments: Sequence[str]) -> int:
    pid = os.fork()
    if pid == 0:
        _be_the_service(log, arguments)
    return pid


def _be_the_service(log: Path, arguments: Sequence[str]) -> NoReturn:
    from airflow.__main__ import main as airflow
    from setproctitle import setproctitle

    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.argv = ["airflow", *arguments]
    setproctitle(" ".join(sys.argv))
    code = 1
    try:
        airflow()  # type: ignore[no-untyped-call]
        code = 0
    except SystemExit as told:
        code = told.code if isinstance(told.code, int) else int(told.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
