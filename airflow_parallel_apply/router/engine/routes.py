"""The ways to divide rows over outputs. Each is a function of the row and the number of outputs, and of nothing else.

- `HashRoutes`: rows with equal values in some columns go to one output.
- `RangeRoutes`: rows whose value lies in a span go to the span's output.
- `MirrorRoutes`: every output gets every row. So two targets follow one history.
- `PlacedRoutes`: as somebody else says, such as a pipeline's partitioner.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.partition.split import split
from airflow_parallel_apply.router.engine.hashing import can_hash, hashes

Numbers = npt.NDArray[np.int64]


class Routes(Protocol):
    """Divides batches over outputs."""

    @property
    def outputs(self) -> int:
        """How many there are."""
        ...

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of each output that has some, in the order in which they came. Each piece has memory of its own, or
        all of the batch's.
        """
        ...


class PlacedRoutes:
    """See the module. `place`: the output of each row of a batch; a negative one means that the row goes nowhere."""

    def __init__(self, place: Callable[[pa.RecordBatch], Numbers], outputs: int) -> None:
        self.outputs = _at_least(1, outputs)
        self._place = place

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        return split(batch, self._place(batch), self.outputs)


class MirrorRoutes:
    """See the module. The outputs share the memory of the rows, and each is charged for all of it."""

    def __init__(self, outputs: int) -> None:
        self.outputs = _at_least(1, outputs)

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        if batch.num_rows:
            yield from ((number, batch) for number in range(self.outputs))


class HashRoutes:
    """See the module. Equal are also two nulls, two NaN, 0 and -0, and a number in types of different widths.
    `columns`: names in the schema. Errors: `ConfigurationError`.
    """

    def __init__(self, schema: pa.Schema, columns: Sequence[str], outputs: int) -> None:
        if not columns:
            raise ConfigurationError("routing by hash needs a column", op="route")
        for column in columns:
            found = _field(schema, column)
            if not can_hash(found.type):
                raise ConfigurationError(f"rows cannot be routed by hash of {found.type}", op="route", column=column)
        self.outputs = _at_least(2, outputs)
        self._columns = tuple(columns)

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        found = hashes([batch.column(column) for column in self._columns])
        return split(batch, (found % np.uint64(self.outputs)).astype(np.int64), self.outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Values from `start` on and below `end`, and the output that gets their rows."""

    start: Any
    end: Any
    output: int


class RangeRoutes:
    """See the module. `spans`: sorted and disjoint. `default`: the output of values in none of them, and of nulls; an
    error of `split` without one. Errors: `ConfigurationError`.
    """

    def __init__(
        self, schema: pa.Schema, column: str, spans: Sequence[Span], outputs: int, *, default: int | None = None
    ) -> None:
        self.outputs = _at_least(1, outputs)
        _field(schema, column)
        if any(span.start >= span.end for span in spans):
            raise ConfigurationError("a span is empty", op="route", column=column)
        if any(one.end > other.start for one, other in pairwise(spans)):
            raise ConfigurationError("spans overlap, or are not sorted", op="route", column=column)
        for output in (*(span.output for span in spans), 0 if default is None else default):
            if not 0 <= output < outputs:
                raise ConfigurationError(f"there is no output {output}", op="route", column=column)
        self._column = column
        self._spans = tuple(spans)
        self._starts = [span.start for span in spans]
        self._default = default

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        # Each value is looked up once: what rows are routed by usually repeats.
        encoded = batch.column(self._column).dictionary_encode()
        values = encoded.dictionary.to_pylist()
        of_values = np.array([*map(self._output, values), 0], dtype=np.int64)
        if encoded.null_count:
            of_values[-1] = self._output(None)
        codes = encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)
        return split(batch, of_values[codes], self.outputs)

    def _output(self, value: Any) -> int:
        index = -1 if value is None else bisect_right(self._starts, value) - 1
        if index >= 0 and value < self._spans[index].end:
            return self._spans[index].output
        if self._default is None:
            raise ConfigurationError(
                "a row lies in no span",
                op="route",
                column=self._column,
                hint="Give a default output.",
                values=str(value),
            )
        return self._default


def _at_least(least: int, outputs: int) -> int:
    if outputs < least:
        raise ConfigurationError(f"{outputs} outputs: this routing needs at least {least}", op="route")
    return outputs


def _field(schema: pa.Schema, column: str) -> pa.Field:
    if column not in schema.names:
        raise ConfigurationError(
            f"rows have no column of this name, but {', '.join(schema.names)}", op="route", column=column
        )
    return schema.field(column)
