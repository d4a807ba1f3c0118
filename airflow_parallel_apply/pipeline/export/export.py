"""Exports: `export_changes`, `export_query`. One commit for each call; a call again, or a late one, adds nothing."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow.compute as pc

from airflow_parallel_apply.pipeline.config import Endpoint
from airflow_parallel_apply.pipeline.encode.columns.rows import UnfitColumns
from airflow_parallel_apply.pipeline.encode.progress import Encoded, Progress
from airflow_parallel_apply.pipeline.errors import START_ANEW, EncodeError, LogError, Unavailable
from airflow_parallel_apply.pipeline.export.open import open_place, open_query
from airflow_parallel_apply.pipeline.export.options import ExportOptions, QueryOptions
from airflow_parallel_apply.pipeline.export.protocol import QUERIES, Attempt, Held, Place, Stretch
from airflow_parallel_apply.pipeline.export.query import QueryPortions
from airflow_parallel_apply.pipeline.export.report import ExportReport
from airflow_parallel_apply.pipeline.export.windows import windows
from airflow_parallel_apply.pipeline.log.mark import mark_of
from airflow_parallel_apply.pipeline.log.protocol import LogReader
from airflow_parallel_apply.pipeline.model.change import NO_SEQNO

Report = Callable[[Encoded], None]
Cancelled = Callable[[], bool]


def export_changes(
    log: LogReader,
    place: str,
    options: ExportOptions,
    *,
    report: Report | None = None,
    cancelled: Cancelled = lambda: False,
) -> ExportReport:
    """Add the changes behind the place's position, up to `options.until_seqno`, and commit them with the position.

    `place`: a directory, or a URL. Columns with values that their types cannot hold keep the source's text from then
    on, and are named. Errors: `EncodeError`, also for a place that has another log's changes, or another format, and
    for a log that has another transaction at the place's position; `LogError` for what was purged; `Unavailable` for a
    log that ends before the position, and when cancelled. Whatever it raises, all of this call is committed, or
    nothing: the next one goes on from what the place has.
    """
    opened = open_place(place, options, cancelled)

    def behind(after: int, last: int) -> Stretch | None:
        if last <= after:
            return None
        return Stretch(
            first_seqno=after + 1,
            last_seqno=last,
            total_rows=pc.sum(log.transactions(after, last).column("row_count")).as_py() or 0,
            server=log.identity.server,
            database=log.identity.database,
            export_id="",
            mark=mark_of(log, last),
            portions=lambda passed_over: windows(
                log,
                after,
                last,
                wanted=lambda relation: options.tables.matches(relation.schema, relation.table),
                window_bytes=options.window_bytes,
                passed_over=passed_over,
            ),
        )

    def todo(attempt: Attempt) -> Stretch | None:
        position = NO_SEQNO if attempt.held is None else attempt.held.position
        # Read after the place: another export may have added what the log has got meanwhile.
        state = log.state()
        if position > state.last_seqno:
            raise Unavailable(
                f"the log ends at seqno {state.last_seqno}, and {opened.url} has its changes up to seqno {position}: "
                "it is an older state of itself",
                op="export",
                hint="It is tried again: a network file system may show an older state for a moment. If the log was "
                "restored together with its source, export to another place.",
            )
        last = state.last_seqno if options.until_seqno is None else min(options.until_seqno, state.last_seqno)
        if position < state.purged_seqno and position < last:
            raise LogError(
                f"seqnos {position + 1} to {state.purged_seqno} were purged from the log, and {opened.url} lacks them",
                op="export",
                seqno=position + 1,
                hint="No export of this log's changes can have them any more. Export the tables' rows by a query, to a "
                "place of its own; or export the changes of a new log, which holds them from its copy on. Then let "
                f"purge keep what is still to be exported (--keep-hours). {START_ANEW}",
            )
        mark = None if attempt.held is None else attempt.held.mark
        if mark is not None and position > state.purged_seqno and mark_of(log, position) != mark:
            raise EncodeError(
                f"the log has another transaction of seqno {position} than the one that {opened.url} has",
                op="export",
                seqno=position,
                hint="The log was restored to an earlier moment, or its first copy was made again: export to another "
                "place.",
            )
        return behind(position, last)

    return _export(opened, log.identity.log_id, options, todo, report)


def export_query(
    database: Endpoint,
    query: QueryOptions,
    place: str,
    options: ExportOptions,
    *,
    report: Report | None = None,
    cancelled: Cancelled = lambda: False,
) -> ExportReport:
    """Add the rows of a query, once for each `query.export_id`. Errors: as of `export_changes`; `ConfigurationError`
    for a query that the database refuses.
    """
    opened = open_place(place, options, cancelled)

    def todo(attempt: Attempt) -> Stretch | None:
        if attempt.has(query.export_id):
            return None
        return Stretch(
            first_seqno=None,
            last_seqno=None,
            total_rows=None,
            server=database.conn_id,
            database=database.conn_id,
            export_id=query.export_id,
            mark=None,
            portions=lambda passed_over: QueryPortions(  # noqa: ARG005  # a query passes nothing over
                lambda: open_query(database, query.sql), query, options.window_bytes
            ).read(),
        )

    return _export(opened, QUERIES, options, todo, report, export_id=query.export_id)


def _export(
    place: Place,
    origin: str,
    options: ExportOptions,
    todo: Callable[[Attempt], Stretch | None],
    report: Report | None,
    *,
    export_id: str = "",
) -> ExportReport:
    # Once a text, always a text: readers of a place find one type.
    texts = {*options.texts, *place.texts}
    while True:
        with place.attempt() as attempt:
            held = attempt.held
            _check_same(held, origin, place)
            stretch = todo(attempt)
            if stretch is None:
                return attempt.nothing(export_id)
            texts |= set(held.texts if held is not None else ())
            try:
                attempt.write(stretch, frozenset(texts), Progress(report, total_rows=stretch.total_rows))
            except BaseException as error:
                found = _unfit(error) - texts
                if not found:
                    raise
                texts |= found
                continue
            position = NO_SEQNO if stretch.last_seqno is None else stretch.last_seqno
            added = attempt.commit(
                stretch,
                Held(
                    origin=origin,
                    format=place.format,
                    position=position,
                    texts=tuple(sorted(texts)),
                    mark=stretch.mark,
                ),
            )
            if added is not None:
                return added
        # Another export has gone on from the same position: ours begins again behind it.


def _check_same(held: Held | None, origin: str, place: Place) -> None:
    if held is None:
        return
    is_query = QUERIES in (held.origin, origin)
    for what, there, here in (
        ("what it has" if is_query else "the log", held.origin, origin),
        ("the format", held.format, place.format),
    ):
        if there != here:
            raise EncodeError(
                f"{place.url} has what another export wrote: {what} is {there}, and not {here}",
                op="export",
                hint="Export to a place of its own.",
            )


def _unfit(error: BaseException) -> set[str]:
    """The columns that an error of the pool is about; none where it is about something else, too."""
    causes = error.__cause__.exceptions if isinstance(error.__cause__, BaseExceptionGroup) else (error,)
    if not all(isinstance(one, UnfitColumns) for one in causes):
        return set()
    return {f"{one.table}.{column}" for one in causes if isinstance(one, UnfitColumns) for column in one.columns}
