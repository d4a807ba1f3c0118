"""PostgreSQL's words stand in the rooms' own `postgres/` folders and in `open.py`, and nowhere else of what flows."""

from __future__ import annotations

import re
from pathlib import Path

import airflow_parallel_apply

PACKAGE = Path(airflow_parallel_apply.__file__).parent
NEUTRAL = ("pipeline", "router", "spark", "queue")
WORDS = re.compile(
    r"postgres(?:ql)?|psycopg|libpq|pgoutput|\bpg_\w+|\blsn\b|sqlstate|\bwal_\w+|\w+_wal\b|\bpublications?\b|system_identifier"
    r"|(?<!Airflow )\bslot\b(?!s\b)",
    re.IGNORECASE,
)
ALLOWED = {
    "pipeline/config.py": {"slot"},
    "pipeline/admin/drop.py": {"slot"},
    "pipeline/check/beginning.py": {"slot"},
    "pipeline/check/loop.py": {"slot"},
    "pipeline/check/recopied.py": {"slot"},
    "pipeline/model/copy_text.py": {"PostgreSQL"},
    "pipeline/model/former.py": {"PostgreSQL", "lsn", "slot", "publication", "system_identifier"},
    "queue/__main__.py": {"PostgreSQL"},
}
"""The parameter `slot` and what refers to it; the log's text format, which is that of COPY; what earlier versions
stored; and the help of a command that takes an address.
"""
OTHER_SLOTS = re.compile(r"(wait|waits|come, which may wait) for (it without )?(a )?slot|without a slot")


def words_of(path: Path) -> set[str]:
    return set(WORDS.findall(OTHER_SLOTS.sub("", path.read_text())))


def test_no_neutral_module_names_postgresql() -> None:
    found = {}
    for room in NEUTRAL:
        for path in (PACKAGE / room).rglob("*.py"):
            if "postgres" in path.relative_to(PACKAGE).parts or path.name == "open.py" or "_pb2" in path.name:
                continue
            name = path.relative_to(PACKAGE).as_posix()
            # A log's publication is that of its versions.
            words = words_of(path) - ALLOWED.get(name, set())
            if name in ("pipeline/log/writer.py", "pipeline/log/publication.py"):
                words -= {"publication", "Publication"}
            if words:
                found[name] = words
    assert found == {}
