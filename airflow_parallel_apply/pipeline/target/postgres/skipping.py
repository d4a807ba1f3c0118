"""The last resort of hints, a run with ddl=skip, which takes definitions as followed where nothing shows it.

It would take those of later transactions as followed, too, which nobody has looked at: so it ends behind the
transaction that the hint is about, and what else that one changed is told along with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from airflow_parallel_apply.pipeline.errors import PlanError

SKIPPING: Final = "run once with ddl=skip"
"""The way in which hints about a definition say it."""


def bound(error: PlanError, shown_end: str, others: Sequence[PlanError]) -> None:
    """Say in the error's hint where such a run ends, `shown_end`, and what is to be done before it. `others`: what the
    same transaction's other definitions are refused for.
    """
    if error.hint is None or SKIPPING not in error.hint:
        return
    if others:
        more = " ".join(f"{other.message}: {other.hint}" for other in others)
        error.hint += f" Such a run takes more of the same transaction as done, so first do that: {more}"
    if shown_end:
        error.hint = error.hint.replace(SKIPPING, f"{SKIPPING} and until={shown_end}")
