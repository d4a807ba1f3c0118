"""A distribution beside the package, as `pip install` would leave it: its entry points, on the path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def installed(directory: Path, name: str, entry_points: dict[str, str], *, version: str = "1.0") -> Iterator[None]:
    """`entry_points`: by group, the line that says what it brings."""
    metadata = directory / f"{name}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    (metadata / "entry_points.txt").write_text("".join(f"[{group}]\n{line}\n" for group, line in entry_points.items()))
    sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        sys.path.remove(str(directory))
