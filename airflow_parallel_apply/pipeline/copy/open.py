"""Copying by the schemes of both ends: a pair may have a way of its own, as rows leave the source and enter the target.

A pair is named `<source>-to-<target>`; another package brings one as an entry point of that name (`schemes`). Rows of a
pair without one go into the log, as its first transactions (`capture/copying.py`), and are applied like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from airflow_parallel_apply.pipeline.config import DdlPolicy, Endpoint, PipelineConfig
from airflow_parallel_apply.pipeline.copy.protocol import (
    CopyConnector,
    Copying,
    CopyOrder,
    FirstCopy,
    RecopyProgress,
)
from airflow_parallel_apply.pipeline.errors import START_ANEW, ConfigurationError, FatalError, ParallelApplyError
from airflow_parallel_apply.pipeline.log.copy_note import read_copy_note
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.copy_progress import CopyProgress
from airflow_parallel_apply.pipeline.model.finding import Finding, Side, new_finding
from airflow_parallel_apply.pipeline.open import POSTGRESQL
from airflow_parallel_apply.pipeline.schemes import Schemes, is_pair_to, pair_of
from airflow_parallel_apply.pipeline.target.protocol import Recopied

COPIES: Final = Schemes(
    thing="copy",
    group="airflow_parallel_apply.copies",
    ours={pair_of(POSTGRESQL, POSTGRESQL): "airflow_parallel_apply.pipeline.copy.postgres.connector:PostgresCopies"},
)

_INSTEAD: Final = f"Leave the table out with an exclude pattern, or start anew with all tables. {START_ANEW}"

_SKIPPING: Final = (
    "Or, since ddl=skip covers only what came before this run's task capture began: do the same at the target by hand, "
    "trigger another run with ddl=skip and without until, and clear this one then."
)


def goes_into_log(source: Endpoint, target: Endpoint) -> bool:
    """True if a first run's copy goes into the log, since the pair has no way of its own."""
    return pair_of(source.scheme, target.scheme) not in COPIES.known()


def open_first_copy(
    config: PipelineConfig, source: Endpoint, target: Endpoint, relations: Sequence[Relation], copying: Copying
) -> FirstCopy:
    """One attempt at a first run's copy. Errors: `ConfigurationError` for a pair that nothing copies between."""
    return _connector(source, target).first_copy(config, source, target, relations, copying)


def recopy_tables(
    config: PipelineConfig,
    source: Endpoint,
    target: Endpoint,
    names: Sequence[tuple[str, str]],
    *,
    report: Callable[[RecopyProgress], None],
) -> tuple[Recopied, ...]:
    """See `CopyConnector.recopy`. Errors: its own; `ConfigurationError` for a pair that nothing copies between."""
    return _connector(source, target).recopy(config, source, target, names, report=report)


@contextmanager
def told_what_leads_on(config: PipelineConfig, source: Endpoint, target: Endpoint) -> Iterator[None]:
    """Around what a source may refuse: its errors name the pipeline. A hint that names `recopy` begins with what leads
    on where nothing copies tables anew; of a run with `ddl=skip`, whose end is fixed, one that names `vouch` ends with
    what covers it.
    """
    try:
        yield
    except ParallelApplyError as error:
        error.at(pipeline=config.pipeline)
        hint = error.hint if isinstance(error, FatalError) else None
        if hint is not None and "parallel-apply vouch" in hint and config.ddl is DdlPolicy.SKIP:
            error.hint = hint = f"{hint} {_SKIPPING}"
        if hint is not None:
            error.hint = leading_on(hint, source, target)
        raise


def leading_on(hint: str, source: Endpoint, target: Endpoint) -> str:
    """The hint, behind what leads on where it names `recopy` and nothing copies tables anew."""
    if "parallel-apply recopy" not in hint or not goes_into_log(source, target):
        return hint
    return f"`recopy`, named below, copies nothing to {target.scheme}://. {_INSTEAD} {hint}"


def load_part(source: Endpoint, target: Endpoint, order: CopyOrder, number: int) -> None:
    """See `CopyConnector.load_part`."""
    _connector(source, target).load_part(source, target, order, number)


def copy_findings(
    config: PipelineConfig, source: Endpoint, target: Endpoint, relations: Sequence[Relation]
) -> tuple[Finding, ...]:
    """Find what keeps a copy from being made. Reads only. Errors: the pipeline's."""
    if not goes_into_log(source, target):
        return _connector(source, target).findings(config, source, target, relations)
    if not config.create_tables:
        return ()
    return (
        new_finding(
            Side.TARGET,
            "create_tables",
            f"create_tables makes no tables of {source.scheme}:// at {target.scheme}://",
            note="Leave it out: files, topics and lakes are made by the first rows. For a table that has to be there, "
            "parallel-apply check shows the command.",
        ),
    )


def read_progress(target: Endpoint, pipeline: str, log_url: str | None = None) -> CopyProgress | None:
    """The progress of the pipeline's last copy, or of that into its log; None if there was no copy, or there is no
    pipeline. Errors: the pipeline's.
    """
    found = (connector.progress(target, pipeline) for connector in _connectors_to(target))
    progress = next((progress for progress in found if progress is not None), None)
    if progress is None and log_url is not None and (note := read_copy_note(log_url)) is not None:
        return CopyProgress.from_json(note)
    return progress


def is_copying(target: Endpoint, pipeline: str) -> bool:
    """True if a live session copies for the pipeline. Errors: the pipeline's."""
    return any(connector.is_copying(target, pipeline) for connector in _connectors_to(target))


def is_copying_between(source: Endpoint, target: Endpoint, pipeline: str) -> bool:
    """As `is_copying`, of what copies from this source alone: packages of other pairs need not load."""
    return not goes_into_log(source, target) and _connector(source, target).is_copying(target, pipeline)


def _connector(source: Endpoint, target: Endpoint) -> CopyConnector:
    pair = pair_of(source.scheme, target.scheme)
    if pair not in COPIES.known():
        raise ConfigurationError(
            f"tables cannot be copied anew from {source.scheme}:// to {target.scheme}://",
            op="copy",
            hint=f"{_INSTEAD} A package may bring a copy of its own: an entry point {pair} in the group "
            f"{COPIES.group}.",
        )
    return _opened(pair)


def _connectors_to(target: Endpoint) -> Iterator[CopyConnector]:
    """Connectors of all pairs with this target: it alone knows what was copied, whatever the source is."""
    return (_opened(pair) for pair in COPIES.known() if is_pair_to(pair, target.scheme))


def _opened(pair: str) -> CopyConnector:
    connector: CopyConnector = COPIES.load(pair)()
    return connector
