"""A log that has something to export, and a folder for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.exported_files import TRANSACTIONS
from tests.support.written_log import append, make_log


@pytest.fixture
def log_url(tmp_path: Path) -> str:
    url = str(tmp_path / "log")
    make_log(url)
    append(url, 0, TRANSACTIONS)
    return url


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "out")
