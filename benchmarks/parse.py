"""Measures what parsing the DAG costs: a process that parses it, against one that parses an empty DAG."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from airflow_parallel_apply.pipeline.errors import ParallelApplyError

REPEATS: Final = 7
_HEAVY: Final = ("pyspark", "pyarrow", "pandas", "numpy", "psycopg")
_EMPTY: Final = 'from airflow.sdk import DAG\nwith DAG("empty", schedule=None):\n    pass\n'
_PARSE: Final = """
import json, runpy, sys, time
began = time.perf_counter()
runpy.run_path(sys.argv[1])
spent = time.perf_counter() - began
print(json.dumps([spent, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseCost:
    """Medians, in seconds. `heavy`: what the DAG imported and should not have."""

    empty_seconds: float
    dag_seconds: float
    heavy: tuple[str, ...]


def measure_parse(dag: Path, directory: Path) -> ParseCost:
    """Each parse in a process of its own, by turns."""
    empty = directory / "empty.py"
    empty.write_text(_EMPTY)
    spent: dict[Path, list[float]] = {empty: [], dag: []}
    heavy: set[str] = set()
    for _ in range(REPEATS):
        for path, seconds in spent.items():
            took, modules = _parse(path)
            seconds.append(took)
            if path == dag:
                heavy.update(name for name in _HEAVY if name in modules)
    return ParseCost(empty_seconds=median(spent[empty]), dag_seconds=median(spent[dag]), heavy=tuple(sorted(heavy)))


def _parse(path: Path) -> tuple[float, list[str]]:
    done = subprocess.run([sys.executable, "-c", _PARSE, str(path)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ParallelApplyError(f"{path} does not parse: {done.stderr.strip()[-500:]}", op="bench")
    took, modules = json.loads(done.stdout.splitlines()[-1])
    return float(took), list(modules)
