"""Docstrings begin with what a thing is or does, never with a bare "Of …" or "What …"."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

REPOSITORY = Path(__file__).parents[2]
ROOTS = ("airflow_parallel_apply", "benchmarks", "tests")
OPENING: Final = re.compile(r'^ *r?"""(\w+)', re.MULTILINE)
BARE: Final = {"Of", "What", "Whatever", "Which", "Who", "Whoever", "Whose"}


def test_no_docstring_opens_with_a_bare_pronoun() -> None:
    openings = {
        path.relative_to(REPOSITORY).as_posix(): OPENING.findall(path.read_text())
        for root in ROOTS
        for path in (REPOSITORY / root).rglob("*.py")
    }
    assert sum(map(len, openings.values())) > 1000
    assert {path: found for path, words in openings.items() if (found := BARE & set(words))} == {}
