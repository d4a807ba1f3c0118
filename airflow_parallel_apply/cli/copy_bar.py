"""The initial copy as a progress bar in a terminal; where there is none, nothing."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from airflow_parallel_apply.pipeline.model.copy_progress import CopyProgress


class CopyBar:
    """A context manager. The bar appears with the first progress."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            BarColumn(), TextColumn("{task.description}"), console=console, disable=not sys.stderr.isatty()
        )
        self._task = self._progress.add_task("", total=1.0, visible=False)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, progress: CopyProgress) -> None:
        """Callable from any thread."""
        self._progress.update(self._task, completed=progress.fraction, description=str(progress), visible=True)
