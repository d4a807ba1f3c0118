"""A pipeline of eight channels that one lane serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.eight_channels import make_rig
from tests.support.rig import Rig


@pytest.fixture
def one_lane(source_dsn: str, target_dsn: str, tmp_path: Path) -> Rig:
    """Serves channel after channel, so that they are apart for certain."""
    return make_rig(source_dsn, target_dsn, tmp_path, lanes=1)
