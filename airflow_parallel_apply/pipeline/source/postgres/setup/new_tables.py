"""Tables that match a pipeline's patterns and are not in its publication yet, or are in it and match no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from psycopg import sql

from airflow_parallel_apply.pipeline.config import PipelineConfig
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.log.protocol import LogState
from airflow_parallel_apply.pipeline.log.readers import read_readers
from airflow_parallel_apply.pipeline.model.finding import command_line, listed
from airflow_parallel_apply.pipeline.source.postgres.catalog.catalog import SourceTable, list_tables, with_rows
from airflow_parallel_apply.pipeline.source.postgres.catalog.own_rows import has_read, renamed
from airflow_parallel_apply.pipeline.source.postgres.catalog.shape import look_then
from airflow_parallel_apply.pipeline.source.postgres.proof.observed import entering_look, observe
from airflow_parallel_apply.pipeline.source.postgres.proof.renaming import followed_once, still_under
from airflow_parallel_apply.pipeline.source.postgres.setup.first_run import WITH_GENERATED
from airflow_parallel_apply.pipeline.source.postgres.setup.objects import PipelineObjects
from airflow_parallel_apply.pipeline.source.protocol import Keep
from airflow_parallel_apply.postgres.quoting import quoted


def follow_new(
    mine: PipelineObjects,
    config: PipelineConfig,
    log: LogState,
    tables: Sequence[SourceTable],
    keep: Keep,
    *,
    write_record: Callable[[], None],
) -> tuple[str, ...]:
    """Take tables that are new into the publication; says so. Writers are held off for the moment, so that no row falls
    between. The comment is written in the same transaction, by `write_record`: by that the alteration is known as ours.
    The log knows before it what the tables are, and from where on they count. Errors: `ConfigurationError` for tables
    that the log lacks rows of; `SourceChanged`; psycopg's own.
    """
    connection, publication = mine.session.catalog(), sql.Identifier(mine.publication)
    with connection.transaction():
        has_generated = any(table.generated for table in tables)
        if has_generated:
            mine.require_unaltered(log.registration)
        write_record()
        if has_generated:
            connection.execute(sql.SQL("ALTER PUBLICATION {} SET ({})").format(publication, sql.SQL(WITH_GENERATED)))
        connection.execute(
            sql.SQL("LOCK TABLE {} IN SHARE MODE").format(sql.SQL(", ").join(table.own_rows for table in tables))
        )
        if not has_read(connection, [table.oid for table in tables]):
            raise renamed([table.name for table in tables], op="prepare")
        names = with_rows(connection, tables)
        left = [table.name for table in followed_once(log, tables) if table.name not in names]
        if left:
            raise _wrong(
                mine,
                config,
                f"has tables without rows, which this pipeline followed once and did not see since: {listed(left)}",
                f"Run `{command_line('recopy', left)}`, which empties them at the target; or leave them out with an "
                "exclude pattern.",
            )
        if names:
            known = list_tables(connection, mine.publication)
            waiting = [table.name for table in tables if still_under(log.relations, known, table) is not None]
            if waiting:
                raise _wrong(
                    mine,
                    config,
                    f"has new tables with rows under names that others had, which the target has not renamed yet: "
                    f"{listed(waiting)}",
                    f"Leave {listed(waiting)} out with an exclude pattern until a run has followed the rename and "
                    "is green; then take them in again.",
                )
            raise _wrong(
                mine,
                config,
                f"has new tables with rows, which this pipeline did not see: {listed(names)}",
                f"Run `{command_line('recopy', names)}`, which brings their rows in, with --create-tables if the "
                "target lacks them; or empty them, or leave them out with an exclude pattern.",
            )
        added = sql.SQL(", ").join(sql.SQL("ONLY {}").format(table.identifier) for table in tables)
        connection.execute(sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(publication, added))
        now, lsn = observe(connection, mine.publication).tables, mine.slot.inserted_lsn()
        if any(table.oid not in now for table in tables):
            raise renamed([table.name for table in tables], op="prepare")
        entering = [now[table.oid].registered for table in tables]
        keep(partial(entering_look, entering, look_then(connection, [table.oid for table in entering], lsn), lsn))
    return tuple(f"Added {table.name} to publication {mine.publication}." for table in tables)


def require_matched(
    mine: PipelineObjects, config: PipelineConfig, tables: Sequence[SourceTable], followed: Sequence[SourceTable]
) -> None:
    """Require that all tables which are published are followed. Errors: `ConfigurationError`."""
    known = {table.oid for table in followed}
    found = [table for table in tables if table.is_published and table.oid not in known]
    if found:
        # Without ONLY the tables that inherit from them would leave with them.
        leaving = ", ".join(f"ONLY {quoted(table.schema, table.table)}" for table in found)
        drop = f"ALTER PUBLICATION {quoted(mine.publication)} DROP TABLE {leaving}"
        readers = () if config.is_served else read_readers(config.log_url)
        others = {entry.pipeline for entry in readers} - {config.pipeline}
        raise _wrong(
            mine,
            config,
            f"publishes tables that the patterns no longer match: {listed([table.name for table in found])}",
            f"Keep them in the patterns, since {listed(sorted(others))} may follow them by the same slot. Only if "
            f"no pipeline is to follow them any more, give all the same patterns, and run {drop}."
            if others
            else f"Run {drop}; the pipeline no longer follows them then. Or keep them in the patterns.",
        )


def _wrong(mine: PipelineObjects, config: PipelineConfig, what: str, hint: str) -> ConfigurationError:
    return ConfigurationError(
        f"the source {mine.session.place} {what}", op="prepare", pipeline=config.pipeline, hint=hint
    )
