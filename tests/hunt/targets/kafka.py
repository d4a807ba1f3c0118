"""Topics in a hunt: a feed, which has every change once, and the source's rows when it is read whole."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from airflow_parallel_apply.demo.kafka import KafkaBroker
from airflow_parallel_apply.pipeline.compare.open import ROWS
from tests.hunt.targets.alterations import Alteration
from tests.hunt.targets.directory import KeptDirectory
from tests.hunt.targets.judging import Place, redefined, unequal_tables, unlike_the_log
from tests.support.kafka import committed
from tests.support.kafka.feeds import place_of, require_order
from tests.support.rig import Rig

_UNFIT: Final = re.compile(r"table (\S+?), column (\w+)")


class HuntedKafka:
    """Implements `HuntedTarget`. What the broker holds is in this process: a disk that is never lost."""

    def __init__(self, directory: Path) -> None:
        self._staging = KeptDirectory(directory / "staging")
        self._broker = KafkaBroker(default_partitions=3).start()
        self._number = 0
        self._texts: list[str] = []

    @property
    def url(self) -> str:
        texts = f"&text_columns={','.join(self._texts)}" if self._texts else ""
        return f"kafka://{self._broker.address}/feed{self._number}?staging={self._staging.path}{texts}"

    def fresh(self) -> None:
        self.close()
        self._broker = KafkaBroker(default_partitions=3).start()
        self._number, self._texts = 0, []
        self._staging.fresh()

    def crash(self) -> None:
        self._broker.stop()
        self._broker.start()

    def keep(self) -> None:
        """Nobody copies a broker."""

    def restore(self) -> None:
        """As `keep`."""

    def differences(self, rig: Rig) -> list[str]:
        found = unlike_the_log(rig, self._places())
        return found or (unequal_tables(rig, but=redefined(rig)) if "kafka" in ROWS.known() else [])

    def run(self, statements: Sequence[str]) -> str:
        return ""

    def alter(self, rig: Rig, alterations: Sequence[Alteration]) -> str:
        """Messages have the columns of their own definition."""
        return ""

    def follow(self, told: str) -> str:
        found = _UNFIT.search(told)
        if found is None or "text_columns=" not in told:
            return ""
        self._texts = list(dict.fromkeys((*self._texts, ".".join(found.groups()))))
        return f"text_columns={','.join(self._texts)}"

    def begin_anew(self) -> None:
        """With topics of its own."""
        self._number += 1

    def close(self) -> None:
        self._broker.stop()

    def _places(self) -> Iterator[Place]:
        """The place of each change, once, whichever partitions have it."""
        prefix = f"feed{self._number}."
        for topic in sorted(self._broker.state.topics):
            if not topic.startswith(prefix) or topic.startswith(f"{prefix}_positions."):
                continue
            messages = [read for read in committed(self._broker.address, topic) if read.value is not None]
            require_order(messages)
            truncates = {place_of(read) for read in messages if read.headers["operation"] == "truncate"}
            yield from truncates
            yield from (place_of(read) for read in messages if read.headers["operation"] != "truncate")
