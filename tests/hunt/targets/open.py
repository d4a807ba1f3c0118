"""The words of HUNT_TARGET, the target that a seed names, and the targets behind the words.

A seed names its target in front of a colon: `delta:1234.7`. One without a colon is a trial with PostgreSQL.
"""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from typing import Final

from airflow_parallel_apply.demo.mariadb import missing_programs
from tests.hunt.targets.protocol import HuntedTarget

POSTGRES: Final = "postgres"
ANY: Final = "any"
_CLASSES: Final = {
    "files": "tests.hunt.targets.files:HuntedFiles",
    "delta": "tests.hunt.targets.delta:HuntedDelta",
    "delta-feed": "tests.hunt.targets.delta_feed:HuntedDeltaFeed",
    "mariadb": "tests.hunt.targets.mariadb:HuntedMariaDb",
    "kafka": "tests.hunt.targets.kafka:HuntedKafka",
}
NAMES: Final = (POSTGRES, *_CLASSES)


def named(seed: str) -> str:
    """The word of the target that a seed is a trial of."""
    name, colon, _ = seed.partition(":")
    return name if colon else POSTGRES


def fresh_seed(number: str, wanted: str) -> str:
    """The seed of a new trial. `wanted`: what HUNT_TARGET says. Errors: `ValueError` for an unknown word."""
    if wanted not in (ANY, *NAMES):
        raise ValueError(f"HUNT_TARGET={wanted}: take one of {', '.join((ANY, *NAMES))}")
    name = (
        random.Random(f"hunt target {number}").choice([name for name in NAMES if is_able(name)])
        if wanted == ANY
        else wanted
    )
    return number if name == POSTGRES else f"{name}:{number}"


def is_able(name: str) -> bool:
    """True if what a target needs is installed here."""
    return name != "mariadb" or not missing_programs()


def open_hunted(name: str, directory: Path) -> HuntedTarget:
    """The target of a word, in a directory of its own. Errors: `KeyError` for an unknown one."""
    module, _, made = _CLASSES[name].partition(":")
    found: HuntedTarget = getattr(importlib.import_module(module), made)(directory)
    return found
