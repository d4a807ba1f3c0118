"""Changes of a table without a key: of rows that are equal, as many go as the source deleted, in one commit.

No merge deletes n of m equal rows. So it deletes all m and inserts m - n of them again, as they were read in the
version that the commit is made from: a row of the merge's source finds its image, others find nothing and are inserted.
What a unit both inserts and deletes concerns no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.model.change import Operation, Relation
from airflow_parallel_apply.pipeline.target.delta.columns import OPERATION, SEQNO, STAGED
from airflow_parallel_apply.pipeline.target.delta.images import image_expression, images_of, quoted, row_images
from airflow_parallel_apply.pipeline.target.delta.merge import append
from airflow_parallel_apply.pipeline.target.delta.tables import conditionally, read_columns, schema_of, table_errors

Numbers = npt.NDArray[np.int64]

_SHOWN: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class _Net:
    """`surplus`: rows to insert. `victims`: one row for each image of which rows are to go, `counts`: how many."""

    surplus: pa.Table
    victims: pa.Table
    counts: Numbers


def change_rows(table: DeltaTable, relation: Relation, staged: pa.Table, transactions: Mapping[str, int]) -> None:
    """Insert and delete staged rows. Errors: `Outrun`, `Unavailable`; `TargetError` where the table has too few of a
    row, and then nothing was changed.
    """
    net = _net(relation, staged)
    if not len(net.victims):
        append(table, relation, net.surplus, transactions)
        return
    kept = _kept(table, relation, net)
    source = pa.concat_tables(
        [
            _marked(net.victims, Operation.DELETE),
            _marked(net.surplus, Operation.INSERT),
            _marked(kept, Operation.INSERT),
        ],
        promote_options="default",
    )
    compared = schema_of(table)
    compared = pa.schema([compared.field(column.name) for column in relation.columns])
    deletes = f"s.{quoted(OPERATION)} = '{Operation.DELETE.value}'"
    merging = (
        table.merge(
            source,
            f"{deletes} AND {image_expression(compared, 's')} = {image_expression(compared, 't')}",
            source_alias="s",
            target_alias="t",
            streamed_exec=False,
            commit_properties=conditionally(transactions),
        )
        .when_matched_delete()
        .when_not_matched_insert(
            updates={quoted(name): f"s.{quoted(name)}" for name in source.column_names if name != OPERATION},
            predicate=f"s.{quoted(OPERATION)} = '{Operation.INSERT.value}'",
        )
    )
    with table_errors("commit", table=relation.name):
        merging.execute()


def _net(relation: Relation, staged: pa.Table) -> _Net:
    """The net change of each image."""
    inserts = np.asarray(pc.equal(staged.column(OPERATION), Operation.INSERT.value))
    rows = staged.drop_columns([name for name in STAGED if name != SEQNO])
    if inserts.all():
        return _Net(surplus=rows.drop_columns([SEQNO]), victims=rows.slice(0, 0), counts=np.zeros(0, dtype=np.int64))
    counted = (
        pa.table(
            {
                "image": images_of(staged, [column.name for column in relation.columns]),
                "sign": np.where(inserts, 1, -1),
                "row": np.arange(len(staged)),
            }
        )
        .group_by("image")
        .aggregate([("sign", "sum"), ("row", "max")])
    )
    counts, places = counted.column("sign_sum").to_numpy(), counted.column("row_max").to_numpy()
    surplus, lacking = counts > 0, counts < 0
    return _Net(
        surplus=rows.take(pa.array(np.repeat(places[surplus], counts[surplus]))).drop_columns([SEQNO]),
        victims=rows.take(pa.array(places[lacking])),
        counts=-counts[lacking],
    )


def _kept(table: DeltaTable, relation: Relation, net: _Net) -> pa.Table:
    """The rows with a victim's image that stay, with all columns of the table. Errors: `TargetError`, `Unavailable`."""
    names = [column.name for column in relation.columns]
    victims = images_of(net.victims, names)
    seen = np.zeros(len(victims), dtype=np.int64)
    kept: list[pa.RecordBatch] = []
    schema = schema_of(table)
    for batch in read_columns(table, relation.name, schema.names):
        images = row_images([batch.column(name) for name in names])
        found = pc.index_in(images, value_set=victims.combine_chunks())
        hits = np.flatnonzero(found.is_valid())
        places = found.drop_null().to_numpy().astype(np.int64)
        order = np.argsort(places, kind="stable")
        sorted_places = places[order]
        ranks = np.arange(len(order)) - np.searchsorted(sorted_places, sorted_places) + seen[sorted_places]
        stays = hits[order][ranks >= net.counts[sorted_places]]
        seen += np.bincount(places, minlength=len(seen))
        if len(stays):
            kept.append(batch.take(pa.array(stays)))
    lacking = np.flatnonzero(seen < net.counts)
    if len(lacking):
        place = int(lacking[0])
        raise TargetError(
            f"{net.counts[place]} equal rows are to be deleted, and the table has {seen[place]} of them",
            op="commit",
            table=relation.name,
            seqno=net.victims.column(SEQNO)[place].as_py(),
            values=victims[place].as_py()[:_SHOWN],
            hint="Somebody else wrote the table. Compare it with the source, correct it, and clear the task open.",
        )
    return pa.Table.from_batches(kept, schema)


def _marked(rows: pa.Table, operation: Operation) -> pa.Table:
    rows = rows.drop_columns([name for name in (SEQNO,) if name in rows.column_names])
    return rows.append_column(pa.field(OPERATION, pa.string()), pa.array([operation.value] * len(rows), pa.string()))
