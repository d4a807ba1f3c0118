"""Targets that are directories, as far as they have it in common: they are emptied, copied, and put back."""

from __future__ import annotations

import shutil
from pathlib import Path


class KeptDirectory:
    """A directory of a trial, and its copy."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kept = path.with_name(f"{path.name}.kept")

    def fresh(self) -> None:
        """Empty, and without a copy."""
        shutil.rmtree(self._kept, ignore_errors=True)
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)

    def keep(self) -> None:
        shutil.rmtree(self._kept, ignore_errors=True)
        shutil.copytree(self.path, self._kept)

    def restore(self) -> None:
        """Nothing, if nothing was kept."""
        if self._kept.exists():
            shutil.rmtree(self.path)
            shutil.copytree(self._kept, self.path)
