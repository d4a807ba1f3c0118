"""`spark.read.format("parallel_apply_log")`: any Spark user looks into a log, as far as its last manifest goes.

::

    register(spark)
    spark.read.format("parallel_apply_log").option("path", "/srv/log").option("from_seqno", 1000).load()
        .where("bucket < 128 and operation = 'D'").groupBy("table").count()

Columns: those of `pipeline.log.schema.ROWS`, but `values` and `old_key` as arrays of texts, and `table` (schema.table).
Filters on seqno and bucket are pushed down where `spark.sql.python.filterPushdown.enabled` is true, which `register`
sees to. The apply stage does not come this way: it has Spark read the files natively.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.log import open_reader
from airflow_parallel_apply.pipeline.log.schema import ROWS
from airflow_parallel_apply.pipeline.model.change import LAST_SEQNO
from airflow_parallel_apply.pipeline.model.copy_text import lists
from airflow_parallel_apply.spark.schemas import LISTED, SOURCE_SCHEMA

NAME: Final = "parallel_apply_log"
_PRUNED: Final = ("seqno", "bucket")
_BATCH_ROWS: Final = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile(InputPartition):  # type: ignore[misc]
    """One segment's rows, read by one task."""

    path: str


class LogDataSource(DataSource):  # type: ignore[misc]
    """Options: `path` (the log's directory, seen by every worker), `from_seqno`, `to_seqno` (both inclusive;
    without `from_seqno` what the log still has).
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return SOURCE_SCHEMA

    def reader(self, schema: Any) -> LogDataSourceReader:
        del schema
        path = self.options.get("path")
        if not path:
            raise ConfigurationError(f"{NAME}: no log is named", hint="Set the option path to the log's directory.")
        first_seqno = open_reader(path).state().purged_seqno + 1
        return LogDataSourceReader(path, self._number("from_seqno", first_seqno), self._number("to_seqno", LAST_SEQNO))

    def _number(self, option: str, default: int) -> int:
        text = self.options.get(option, str(default))
        try:
            return int(text)
        except ValueError as error:
            raise ConfigurationError(
                f"{NAME}: {option}={text!r} is not a seqno", hint="Give a whole number."
            ) from error


class LogDataSourceReader(DataSourceReader):  # type: ignore[misc]
    """Plans one task a segment, and prunes row groups inside it by their statistics."""

    def __init__(self, url: str, from_seqno: int, to_seqno: int) -> None:
        self._url = url
        self._lowest = {"seqno": from_seqno, "bucket": 0}
        self._highest = {"seqno": to_seqno, "bucket": LAST_SEQNO}

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Takes comparisons of seqno and bucket with a number, and gives back the others."""
        for asked in filters:
            name = ".".join(getattr(asked, "attribute", ()))
            if name not in _PRUNED or not self._narrow(name, asked):
                yield asked

    def partitions(self) -> Sequence[InputPartition]:
        paths = open_reader(self._url).row_files(self._lowest["seqno"] - 1, self._highest["seqno"])
        return [LogFile(path=path) for path in paths]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LogFile):
            return
        names = {relation.relation_id: relation.name for relation in open_reader(self._url).state().relations}
        ids, texts = pa.array(list(names), pa.int32()), pa.array(list(names.values()), pa.string())
        rows = ds.dataset(partition.path, schema=ROWS, format="parquet")
        for batch in rows.to_batches(filter=self._condition(), batch_size=_BATCH_ROWS):
            table = texts.take(pc.index_in(batch.column("relation_id"), ids))
            columns = [lists(batch.column(name)) if name in LISTED else batch.column(name) for name in ROWS.names]
            yield pa.record_batch([*columns, table], names=SOURCE_SCHEMA.names)

    def _narrow(self, name: str, asked: Filter) -> bool:
        match asked:
            case EqualTo(value=int() as value):
                lowest, highest = value, value
            case GreaterThan(value=int() as value):
                lowest, highest = value + 1, LAST_SEQNO
            case GreaterThanOrEqual(value=int() as value):
                lowest, highest = value, LAST_SEQNO
            case LessThan(value=int() as value):
                lowest, highest = -LAST_SEQNO, value - 1
            case LessThanOrEqual(value=int() as value):
                lowest, highest = -LAST_SEQNO, value
            case _:
                return False
        self._lowest[name] = max(self._lowest[name], lowest)
        self._highest[name] = min(self._highest[name], highest)
        return True

    def _condition(self) -> Any:
        seqno, bucket = ds.field("seqno"), ds.field("bucket")
        return (
            (seqno >= self._lowest["seqno"])
            & (seqno <= self._highest["seqno"])
            & (bucket >= self._lowest["bucket"])
            & (bucket <= min(self._highest["bucket"], 2**31 - 1))
        )


def register(spark: Any) -> None:
    """Make the format known to a session (classic or Connect) and let it push filters down."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(LogDataSource)
