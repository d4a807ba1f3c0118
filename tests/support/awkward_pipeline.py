"""Tables of every awkward kind at the source, and a pipeline of them into a target that is no PostgreSQL."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from airflow_parallel_apply.pipeline.config import DdlPolicy, PipelineConfig, Start, TablePatterns
from airflow_parallel_apply.pipeline.log.open import open_reader
from tests.support.awkward_tables import BOTH, SOURCE
from tests.support.ddl_messages import install
from tests.support.rig import Rig, execute


def awkward_pipeline(
    url: str, *, source_dsn: str, ledger_dsn: str, directory: Path, ddl: DdlPolicy = DdlPolicy.SKIP
) -> Rig:
    """Make the tables at the source. `url`: the target's. The pipeline is not prepared yet."""
    execute(source_dsn, *BOTH, *SOURCE)
    install(source_dsn)
    config = PipelineConfig(
        pipeline="awkward",
        log_url=str(directory / "log"),
        channels=8,
        tables=TablePatterns(include=("*.*",)),
        ddl=ddl,
        start=Start.EMPTY,
        epoch_max_changes=120,
    )
    return Rig(config=config, source_dsn=source_dsn, target_dsn=url, ledger_dsn=ledger_dsn)


def require_equal_tables(rig: Rig, *, tables: int, rows: int) -> None:
    """Tables whose columns stayed as they were are equal, and there are more of them, with more rows, than these."""
    definitions = Counter(relation.name for relation in open_reader(rig.config.log_url).state().relations)
    compared = [table for table in rig.comparison().tables if definitions[table.name] == 1]
    assert [(table.name, table.problem, table.differences) for table in compared if not table.equal] == []
    assert len(compared) > tables
    assert sum(table.source_rows or 0 for table in compared) > rows
