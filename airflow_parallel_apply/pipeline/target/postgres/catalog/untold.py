"""Tells a person what to do where the log does not say what became of a table's columns."""

from __future__ import annotations

from airflow_parallel_apply.pipeline.errors import PlanError
from airflow_parallel_apply.pipeline.model.change import Column, Relation
from airflow_parallel_apply.pipeline.model.finding import command_line
from airflow_parallel_apply.pipeline.target.skipping import SKIPPING


def recopying(relation: Relation, *others: str) -> str:
    """The hint that always leads on. `others`: names of tables that go with it."""
    names = dict.fromkeys((relation.name, *others))
    what = "the table" if len(names) == 1 else "the tables"
    return f"`{command_line('recopy', names)}` copies {what} anew; then run again."


def untold(relation: Relation, columns: tuple[Column, ...]) -> PlanError:
    """Columns that changed more than once before they were captured."""
    names = ", ".join(dict.fromkeys(column.name for column in columns))
    return PlanError(
        f"columns of {relation.name} changed at the source more than once before they were captured, and nothing tells "
        f"which columns these changes are of, as where one was dropped and made again: {names}",
        table=relation.name,
        column=columns[-1].name,
        hint=f"{recopying(relation)} Where the target's rows are right as they are, {SKIPPING}.",
    )


def unclear(relation: Relation, columns: tuple[Column, ...]) -> PlanError:
    """Columns that may have been renamed, or dropped and added."""
    names = ", ".join(dict.fromkeys(column.name for column in columns))
    return PlanError(
        f"columns of {relation.name} changed at the source, and the log does not tell whether they were renamed, or "
        f"dropped and added: {names}",
        table=relation.name,
        column=columns[-1].name,
        hint=f"Change the target's table as the source's was, then run again: everything before is applied. Or: "
        f"{recopying(relation)}",
    )
