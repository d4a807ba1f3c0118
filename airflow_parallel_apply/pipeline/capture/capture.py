"""A source and the log that it fills: `Capture`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial

from airflow_parallel_apply.pipeline.capture.loop import capture
from airflow_parallel_apply.pipeline.capture.overtaken import unless_overtaken
from airflow_parallel_apply.pipeline.capture.preparing import prepare
from airflow_parallel_apply.pipeline.capture.values import CaptureStep, IntoLog, Prepared
from airflow_parallel_apply.pipeline.config import PipelineConfig
from airflow_parallel_apply.pipeline.log.open import reader_if_there, sync_manifests
from airflow_parallel_apply.pipeline.log.protocol import LogPlace
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import Finding
from airflow_parallel_apply.pipeline.model.offset import Offset
from airflow_parallel_apply.pipeline.source.protocol import Snapshot, Source


class Capture:
    """One pipeline's, for one thread. Errors: those of `Source`; nothing moved after any of them."""

    def __init__(self, source: Source, config: PipelineConfig) -> None:
        self.source = source
        self._config = config

    def prepare(
        self,
        copy: Callable[[Snapshot], None] | IntoLog | None = None,
        *,
        checked: Sequence[Relation] | None = None,
        is_known: bool = False,
    ) -> Prepared:
        """Check the source, begin stream and log on the first run; check that they still fit on others.

        `copy` is called after the stream is there and before the log, so on a first run only; or the rows go into the
        log. Nothing is captured unless that returns. When it raises the stream is gone, and the next call begins anew.

        `checked`: the definitions that the caller has compared with the target. A first run whose stream begins with
        others is a `SourceChanged`, before anything is copied.

        `is_known`: the caller knows that the first run came to its end. A stream that has not begun then is a
        `SourceError`: the source lost it.
        """
        return prepare(self.source, self._config, copy, checked=checked, is_known=is_known)

    def findings(self) -> tuple[Finding, ...]:
        """Find what would stand in the way of `prepare`, and what should be known; reads only."""
        return self.source.findings(partial(reader_if_there, self._config.log_url))

    def has_changes(self, log: LogPlace) -> bool:
        """True if the source holds a followed change that the log has not; cheap. Lets a source that a crash left
        behind advance to its place first. `SourceError` where it lacks what the log has.
        """
        url = self._config.log_url
        with unless_overtaken("sense", url, lambda: log):
            reader = reader_if_there(url)
            if reader is not None:
                sync_manifests(url)
            self.source.release(log)
            return self.source.has_changes(log, None if reader is None else reader.state().registration)

    def capture(
        self, until: Offset, *, max_changes: int, step_changes: int | None = None, cancelled: Callable[[], bool]
    ) -> Generator[CaptureStep, None, None]:
        """Read about `max_changes` of the next changes, at least one, whole transactions, into the log; then let the
        source go up to what is durable. About `step_changes` (None: all that is read) become durable with each step.
        Call again until a step is `done`. A crash, an error or `close` at any line repeats, loses nothing, duplicates
        nothing.
        """
        return capture(
            self.source,
            self._config.log_url,
            until,
            max_changes=max_changes,
            step_changes=step_changes or max_changes,
            cancelled=cancelled,
        )

    def close(self) -> None:
        """End the source's sessions."""
        self.source.close()
