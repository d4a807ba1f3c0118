"""Access to Spark for jobs: through Connect, or inside the driver of an application. What a job is, is the same for
both.

The DataFrames of `job` and `copier` work on both kinds of session; only what stands here differs between them.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Final, Protocol

_SPLITS: Final = re.compile(r"\bRange \(.*splits=(?:Some\()?(\d+)")
"""In the plan of a range, the number of its parts."""


class SparkAccess(Protocol):
    """Opens sessions, and tells their jobs apart by tags. Thread-safe."""

    def open(self) -> Any:
        """A session with this package's settings. Errors: `Unavailable`, `ConfigurationError`."""
        ...

    def close(self, session: Any) -> None:
        """Give the session up; what other users of the same Spark do goes on."""
        ...

    def tagged(self, session: Any, tag: str) -> AbstractContextManager[None]:
        """Tag the operations that this thread starts meanwhile."""
        ...

    def interrupt(self, session: Any, tag: str) -> None:
        """End the jobs that bear the tag, whichever thread or process started them. Errors: `Unavailable`."""
        ...


def column_functions(frame: Any) -> ModuleType:
    """`pyspark.sql.functions` for this DataFrame or session. A column of one kind is nothing to the other, and
    Spark's own choice between them goes by the process, not by the session.
    """
    if _is_connect(frame):
        from pyspark.sql.connect import functions as connect_functions

        return connect_functions  # type: ignore[no-any-return]
    from pyspark.sql import functions

    return functions  # type: ignore[no-any-return]


def filter_counts(frame: Any) -> list[int] | None:
    """Count the rows that came out of each filter that has no other filter below it, by Spark's own metrics of a
    DataFrame that was executed. None where it is not told.
    """
    if not _is_connect(frame):
        return _classic_counts(frame._jdf.queryExecution().executedPlan())
    collected = getattr(frame.executionInfo, "metrics", None)
    if collected is None:
        return None
    _, nodes = collected.extract_graph()
    lowest = [node for number, node in nodes.items() if node.name == "Filter" and not _filter_below(nodes, number)]
    return [int(metric.value) for node in lowest for metric in node.metrics if metric.name == "numOutputRows"]


def core_count(session: Any) -> int:
    """How many tasks run side by side, as far as Spark knows now: by its default for a DataFrame made of nothing. Runs
    no job; one call to the server.
    """
    if not _is_connect(session):
        return int(session.sparkContext.defaultParallelism)
    told = _SPLITS.search(session.range(0, 1)._explain_string(extended=False))
    return int(told[1]) if told else 1


def _is_connect(frame: Any) -> bool:
    return type(frame).__module__.startswith("pyspark.sql.connect.")


def _filter_below(nodes: dict[int, Any], number: int) -> bool:
    return any(
        child != number and (nodes[child].name == "Filter" or _filter_below(nodes, child))
        for child in nodes[number].children
    )


def _classic_counts(plan: Any) -> list[int]:
    children = plan.children()
    below = [count for index in range(children.size()) for count in _classic_counts(children.apply(index))]
    if below or plan.nodeName() != "Filter":
        return below
    return [int(plan.metrics().apply("numOutputRows").value())]
