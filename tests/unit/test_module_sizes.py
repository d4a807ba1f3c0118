"""Modules are of a size that can be read: half of them within 150 lines, none above 350."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import airflow_parallel_apply

PACKAGE = Path(airflow_parallel_apply.__file__).parent


def test_modules_stay_readable() -> None:
    lines = {
        path.relative_to(PACKAGE).as_posix(): len(path.read_text().splitlines())
        for path in PACKAGE.rglob("*.py")
        if "_pb2" not in path.name and path.name != "__init__.py"
    }
    assert median(lines.values()) <= 150
    assert {name: count for name, count in lines.items() if count > 350} == {}
