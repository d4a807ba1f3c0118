"""One read of a source, and why a crash at any of its lines repeats, loses nothing and duplicates nothing.

What the log has decides. A source that holds more is released first, one that holds less has lost changes and says so.
What is read becomes durable step by step; the source is released once the read is over, up to the last step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing

from airflow_parallel_apply.pipeline.capture.overtaken import unless_overtaken
from airflow_parallel_apply.pipeline.capture.values import CaptureStep
from airflow_parallel_apply.pipeline.log.protocol import LogState, LogWriter
from airflow_parallel_apply.pipeline.log.writing import open_writer
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.source.protocol import Look, Part, Source


def capture(
    source: Source,
    log_url: str,
    until: Offset,
    *,
    max_changes: int,
    step_changes: int,
    cancelled: Callable[[], bool],
) -> Generator[CaptureStep, None, None]:
    """See `Capture.capture`."""
    began = time.monotonic()
    # A writer of its own for each read: between two reads another lane may have had its turn.
    writer = open_writer(log_url)
    before = writer.state()
    rows, rows_before = 0, 0
    with unless_overtaken("capture", log_url, lambda: writer.state().place):
        source.release(before.place)
        through = source.reach(before.place, until)
        look = source.look(before, through)
        note(writer, look)
        read = source.read(before, look, writer, through=through, max_changes=max_changes, step_changes=step_changes)
        try:
            with closing(read):
                for given in read:
                    if isinstance(given, Part):
                        if cancelled():
                            writer.abandon()
                            yield _step(before, before, until=until, rows=0, began=began)
                            return
                        writer.append(given.rows, given.transactions)
                        rows += given.rows.num_rows
                        continue
                    after = writer.commit(max(before.captured_offset, given.offset), given.resume)
                    if given.is_last:
                        # A writer that was refused did not come here: law 7.
                        source.release(after.place)
                    step = _step(before, after, until=until, rows=rows, began=began)
                    # Nothing is told of a read's end that the steps before it have told.
                    if not given.is_last or step.done or step.transaction_count or not rows_before:
                        yield step
                    before, rows, rows_before, began = after, 0, rows_before + rows, time.monotonic()
        except BaseException:
            writer.abandon()
            raise


def note(writer: LogWriter, look: Look) -> None:
    """Keep what a source told of its tables; durable with the next commit."""
    writer.see(look.sightings)
    if look.registration is not None:
        writer.register(look.registration, look.registered_offset)


def _step(before: LogState, after: LogState, *, until: Offset, rows: int, began: float) -> CaptureStep:
    transaction_count = after.last_seqno - before.last_seqno
    return CaptureStep(
        captured_offset=after.captured_offset,
        first_seqno=before.last_seqno + 1 if transaction_count else None,
        last_seqno=after.last_seqno,
        row_count=rows,
        transaction_count=transaction_count,
        done=after.captured_offset >= until,
        seconds=time.monotonic() - began,
    )
