"""Renames in a log that the target has not followed yet, and that would reach a copy instead of what had its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.config import PipelineConfig
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.ledger.session import PipelineSession
from airflow_parallel_apply.pipeline.log.open import open_reader
from airflow_parallel_apply.pipeline.log.protocol import PassedOver
from airflow_parallel_apply.pipeline.model.change import Mark, Relation
from airflow_parallel_apply.pipeline.model.finding import command_line
from airflow_parallel_apply.pipeline.model.position import low_watermark


def require_no_renaming(
    config: PipelineConfig, session: PipelineSession, relations: Sequence[Relation], gone: Sequence[PassedOver]
) -> None:
    """Require that no rename is on its way to the target: it would rename the copy instead of the table that had the
    name, whose changes before it would be passed over. Errors: `ConfigurationError`.
    """
    applied_seqno = low_watermark(session.target.positions())
    names = {relation.oid: (relation.schema, relation.table) for relation in relations}
    names |= {one.oid: (one.schema, one.table) for one in gone}
    had = _renames_ahead(config.log_url, names, applied_seqno=applied_seqno)
    if had:
        raise ConfigurationError(
            "the log has renames of these tables' names that the target has not followed yet",
            op="recopy",
            pipeline=config.pipeline,
            hint="Run the pipeline until it is green, with an exclude pattern for what is new; then copy them. If it "
            f"stops before that, copy what had the names: `{command_line('recopy', had)}`.",
        )


def _renames_ahead(log_url: str, names: Mapping[int | None, tuple[str, str]], *, applied_seqno: int) -> list[str]:
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
