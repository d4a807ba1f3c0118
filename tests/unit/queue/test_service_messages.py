"""The generated messages are those of queue.proto."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROTO = Path("airflow_parallel_apply/queue/service/queue.proto")


def test_the_committed_messages_are_what_the_proto_generates(tmp_path: Path) -> None:
    arguments = ["--proto_path=.", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", str(PROTO)]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *arguments], cwd=ROOT, check=True)
    for name in ("queue_pb2.py", "queue_pb2.pyi"):
        made = (tmp_path / PROTO.parent / name).read_text()
        assert made == (ROOT / PROTO.parent / name).read_text(), "make proto"
