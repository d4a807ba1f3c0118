"""Expectations of a pipeline towards its target, and the one place that refuses a target that does not meet them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from airflow_parallel_apply.pipeline.errors import TargetError
from airflow_parallel_apply.pipeline.model.change import Relation
from airflow_parallel_apply.pipeline.model.finding import Finding, errors, hint_of, refuse
from airflow_parallel_apply.pipeline.model.reference import Reference

Successor: TypeAlias = tuple[Relation, tuple[Relation, ...]]
"""A table, and definitions of other ones that had its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The expectations that `Target.findings` compares a target with. All tables by their definitions at the source.

    `tables`: those that the target is to have in this form now. `settled`: those of which it has applied the last
    definition, whatever DDL is on its way. `references`: the source's foreign keys that act. `altered`: those whose
    definitions it is to change when DDL comes. `unbegun`: those of which it is to have no rows yet; `successors`: those
    of which this holds once what had their names has others here. `followed`: schema and name of all, whatever their
    form: none may be a part of another here.
    """

    channels: int
    tables: tuple[Relation, ...] = ()
    settled: tuple[Relation, ...] = ()
    references: tuple[Reference, ...] = ()
    altered: tuple[Relation, ...] = ()
    unbegun: tuple[Relation, ...] = ()
    successors: tuple[Successor, ...] = ()
    followed: tuple[tuple[str, str], ...] = ()
    are_empty: bool = False
    """True if `tables` are to have no rows."""
    are_new: bool = False
    """True before the first run, with whatever rows it begins: another log's seqnos are none of this one's."""
    renames: bool = False
    """True if DDL may give followed tables other names, which takes the right to create tables."""
    may_lack_tables: bool = False
    """True if a copy creates those of `tables` that are missing."""


def require_applicable(findings: Iterable[Finding], *, op: str, pipeline: str | None = None) -> tuple[Finding, ...]:
    """Go on with the warnings of a target's findings. Errors: `TargetError` that says all that are errors, tables
    first; `ConfigurationError` where none is about a table.
    """
    found = tuple(dict.fromkeys(findings))
    refused = errors(found)
    if any(finding.is_table for finding in refused):
        text = "; ".join(finding.what for finding in sorted(refused, key=lambda finding: not finding.is_table))
        raise TargetError(
            f"the target cannot take these tables: {text}",
            op=op,
            pipeline=pipeline,
            hint=f"Change the target, exclude the tables, or use one channel where that is named. {hint_of(refused)}",
        )
    return refuse(found, place="the target", op=op, pipeline=pipeline)


def names_of(relations: Iterable[Relation]) -> tuple[tuple[str, str], ...]:
    """Schema and name of each, for `Expectation.followed`."""
    return tuple((relation.schema, relation.table) for relation in relations)
