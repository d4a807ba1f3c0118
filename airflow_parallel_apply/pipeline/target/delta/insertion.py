"""A look for the keys of insertions in a Delta table, whose key columns alone are read.

Net insertions find no row unless somebody else wrote one. Where this is seen in the version that the commit is made
from, they are appended; a merge would read the table's other columns as well, to say the same.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from airflow_parallel_apply.pipeline.model.change import Operation, Relation
from airflow_parallel_apply.pipeline.target.delta.columns import OPERATION
from airflow_parallel_apply.pipeline.target.delta.images import images_of, quoted, row_images
from airflow_parallel_apply.pipeline.target.delta.tables import read_columns


def are_new(table: DeltaTable, relation: Relation, staged: pa.Table) -> bool:
    """True if staged net changes are insertions only, and the table has none of their keys. Errors: `Unavailable`."""
    if not pc.all(pc.equal(staged.column(OPERATION), Operation.INSERT.value)).as_py():
        return False
    names = [relation.columns[place].name for place in relation.key_indexes]
    keys = images_of(staged, names).combine_chunks()
    return not any(
        pc.any(pc.is_in(row_images(batch.columns), value_set=keys)).as_py()
        for batch in read_columns(table, relation.name, names, predicate=_range_of(staged, names))
    )


def _range_of(staged: pa.Table, names: list[str]) -> str | None:
    """A predicate by which files are passed over; of integers alone, whose statistics no writer cuts off."""
    ranges = []
    for name in names:
        column = staged.column(name)
        if pa.types.is_integer(column.type):
            found = pc.min_max(column).as_py()
            ranges.append(f"{quoted(name)} BETWEEN {found['min']} AND {found['max']}")
    return " AND ".join(ranges) or None
