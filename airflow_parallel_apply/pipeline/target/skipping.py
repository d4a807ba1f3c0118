"""The last resort of hints: a run with ddl=skip, which assumes that definitions were followed where nothing shows it.

It would assume the same of later transactions, which nobody has looked at. So the run ends after the transaction that
the hint is about, and the hint also names what else that transaction changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from airflow_parallel_apply.pipeline.errors import FatalError, PlanError
from airflow_parallel_apply.pipeline.target.steps import COMES_BEHIND, Redefine, Statement, Step, shown

SKIPPING: Final = "run once with ddl=skip"
"""The way in which hints about a definition say it."""
_Followed = TypeVar("_Followed")


def bound(error: PlanError, shown_end: str, others: Sequence[FatalError], sent: Sequence[Statement]) -> None:
    """Say in the error's hint where such a run ends, `shown_end`, and what is to be done before it. `others`: what the
    same transaction's other definitions are refused for; `sent`: the DDL that it sent.
    """
    if error.hint is None or SKIPPING not in error.hint:
        return
    _tell(error, others)
    if sent:
        error.hint += (
            " Such a run skips what the transaction sent. Run that at the target first, except on tables that "
        )
        behind = COMES_BEHIND if any(one.computes_behind_rows for one in sent) else ""
        error.hint += f"were copied anew since: {shown(one.text for one in sent)}{behind}."
    if shown_end:
        error.hint = error.hint.replace(SKIPPING, f"{SKIPPING} and until={shown_end}")


def with_those_beside(
    require: Callable[[Redefine | Statement], _Followed], step: Redefine, later: Sequence[Step]
) -> _Followed:
    """`require` a definition to be followed; a refusal tells those of the `later` steps of its transaction, too.
    `require` changes nothing. Errors: its own.
    """
    try:
        return require(step)
    except PlanError as error:
        others = []
        for other in later:
            if isinstance(other, Redefine | Statement) and other.end_offset == step.end_offset:
                try:
                    require(other)
                except FatalError as refused:
                    others.append(refused)
        if error.hint is not None and SKIPPING in error.hint:
            _tell(error, others)
        raise


def _tell(error: PlanError, others: Sequence[FatalError]) -> None:
    if others:
        more = " ".join(f"{_told(other)}: {other.hint}" for other in others)
        error.hint = f"{error.hint} Such a run takes more of the same transaction as done, so first do that: {more}"


def _told(error: FatalError) -> str:
    """Its message, which names the table."""
    is_named = error.table is None or error.table in error.message
    return error.message if is_named else f"{error.table}: {error.message}"
