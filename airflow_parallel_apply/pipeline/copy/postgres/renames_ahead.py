"""Renames in a log that the target has not followed yet, and that would reach a copy instead of what had its name."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.model.change import Mark


def renames_ahead(log_url: str, names: Mapping[int | None, tuple[str, str]], *, applied_seqno: int) -> list[str]:
    """Present names of tables that had one of these names and are renamed behind what was applied. `names`: by the oids
    of those that have them now, or had them last.
    """
    log = open_reader(log_url)
    renaming = {
        relation.relation_id: relation.oid
        for relation in log.state().relations
        if relation.renaming is not None and relation.oid not in names
        if any(old in names.values() for old, _ in relation.renaming.pairs)
    }
    if not renaming:
        return []
    last_seqno = log.state().last_seqno
    transactions = log.transactions(applied_seqno, last_seqno)
    marks = zip(*(transactions.column(name).to_pylist() for name in ("seqno", "marks")), strict=True)
    marked = pa.array([seqno for seqno, found in marks if Mark.RELATION in (found or ())], pa.int64())
    for batch in log.rows(applied_seqno, last_seqno, columns=["seqno", "relation_id"]):
        is_renamed = pc.is_in(batch.column("relation_id"), pa.array([*renaming], pa.int32()))
        found = batch.filter(pc.and_(is_renamed, pc.is_in(batch.column("seqno"), marked)))
        if found.num_rows:
            now = {relation.oid: relation.name for relation in log.state().relations}
            return sorted({now[renaming[one]] for one in found.column("relation_id").to_pylist()})
    return []
