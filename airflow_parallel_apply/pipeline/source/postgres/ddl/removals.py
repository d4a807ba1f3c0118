"""Partitions that were detached or dropped, as `parallel_apply.capture_removal` tells. The message lies in the stream
where their rows went, and whoever had written to them had committed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psycopg

from airflow_parallel_apply.pipeline.model.gone_rows import REMOVAL_PREFIX
from airflow_parallel_apply.pipeline.source.postgres.ddl.ddl_messages import decoded, is_signed
from airflow_parallel_apply.pipeline.source.postgres.ddl_capture import can_verify, ddl_objects
from airflow_parallel_apply.pipeline.source.postgres.pending import Pending
from airflow_parallel_apply.pipeline.source.postgres.wire.messages import parse_message, parse_relation

_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLink:
    """A partition's place: its parent and the version of its entry there (`Partition.link`)."""

    root: int
    parent: int
    link: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GonePart:
    """A partition that is told to be gone, from where it was. `whole`: the one that was dropped or detached, which may
    be above it.
    """

    link: TableLink
    whole: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldRemoval:
    """One message. `part`: the partition that is gone; `parts`: it and those below it, by their oids."""

    root: int
    part: int
    parts: Mapping[int, TableLink]


def removal_of(content: bytes) -> ToldRemoval | None:
    """Read a signed message; None of another version."""
    sent = json.loads(content)
    if sent["version"] != _VERSION:
        return None
    root = sent["root"]
    parts = {part: TableLink(root=root, parent=parent, link=link) for part, parent, link in sent["parts"]}
    return ToldRemoval(root=root, part=sent["part"], parts=parts)


def told_removals(pending: Pending) -> Mapping[int, GonePart]:
    """The partitions that are told to be gone, by oid, as they were then, without those to which a row was written
    behind that. One that is told twice of was told of by a command that had waited for another one's. Errors: psycopg's
    own.
    """
    connection = pending.connection
    if not can_verify(ddl_objects(connection)):
        return {}
    with suppress(psycopg.errors.InsufficientPrivilege):
        pending.bring_to_disk()
    found: dict[int, GonePart] = {}
    once, twice = set[int](), set[int]()
    for xid, data in pending.read("removals"):
        if chr(data[0]) == "R":
            found.pop(parse_relation(data).oid, None)
            continue
        message = parse_message(bytes(data))
        if message.prefix == REMOVAL_PREFIX and is_signed(connection, xid, message):
            told = removal_of(decoded(connection, message))
            if told is not None:
                found.update((part, GonePart(link=link, whole=told.part)) for part, link in told.parts.items())
                twice |= once & told.parts.keys()
                once |= told.parts.keys()
    return {part: gone for part, gone in found.items() if part not in twice}
