"""A directory of files in a hunt: a feed, which has every change once, and the source's rows when it is read whole."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

from airflow_parallel_apply.pipeline.encode.columns.rows import CHANGE
from tests.hunt.targets.alterations import Alteration
from tests.hunt.targets.directory import KeptDirectory
from tests.hunt.targets.judging import Place, redefined, unequal_tables, unlike_the_log
from tests.integration.target_files.feeds import files_of
from tests.support.rig import Rig

_TEXT: Final = re.compile(r"the option text=(\S+) of the target's address")


class HuntedFiles:
    """Implements `HuntedTarget`."""

    def __init__(self, directory: Path) -> None:
        self._root = directory
        self._number = 0
        self._texts: list[str] = []
        self._directory = KeptDirectory(directory / "lake0")

    @property
    def url(self) -> str:
        texts = f"?text={','.join(self._texts)}" if self._texts else ""
        return f"files+file://{self._directory.path}{texts}"

    def fresh(self) -> None:
        self._number, self._texts = 0, []
        self._begin()

    def crash(self) -> None:
        """A disk does not crash."""

    def keep(self) -> None:
        self._directory.keep()

    def restore(self) -> None:
        self._directory.restore()

    def differences(self, rig: Rig) -> list[str]:
        return unlike_the_log(rig, self._places()) or unequal_tables(rig, but=redefined(rig))

    def run(self, statements: Sequence[str]) -> str:
        return ""

    def alter(self, rig: Rig, alterations: Sequence[Alteration]) -> str:
        """Rows have the columns of their own definition."""
        return ""

    def follow(self, told: str) -> str:
        found = _TEXT.search(told)
        if found is None:
            return ""
        self._texts = list(dict.fromkeys((*self._texts, *found.group(1).split(","))))
        return found.group(0)

    def begin_anew(self) -> None:
        """In a directory of its own."""
        self._number += 1
        self._begin()

    def close(self) -> None: ...

    def _begin(self) -> None:
        self._directory = KeptDirectory(self._root / f"lake{self._number}")
        self._directory.fresh()

    def _places(self) -> Iterator[Place]:
        lake = self._directory.path
        for file in files_of(lake):
            read = pq.read_table(lake / file.path)
            marks = read.column_names[-len(CHANGE) :]
            seqno, fragno = marks[CHANGE.get_field_index("_seqno")], marks[CHANGE.get_field_index("_fragno")]
            yield from zip(read.column(seqno).to_pylist(), read.column(fragno).to_pylist(), strict=True)
