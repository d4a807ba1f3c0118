"""The rows of a table after all messages of its topic, and what must hold for them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tests.support.kafka.reading import Read, committed


def place_of(read: Read) -> tuple[int, int]:
    """Where a message's change is in the log."""
    return int(read.headers["seqno"]), int(read.headers["fragno"])


def changes(address: str, topic: str) -> list[Read]:
    """A topic's messages without tombstones, as a consumer of what is committed reads them, each change once: in the
    order of changes. No partition has a key's messages in another order.
    """
    found = [read for read in committed(address, topic) if read.value is not None]
    rows = [read for read in found if read.headers["operation"] != "truncate"]
    assert [place for place, n in Counter(map(place_of, rows)).items() if n > 1] == []
    require_order(found)
    truncates = {place_of(read): read for read in found if read.headers["operation"] == "truncate"}
    return sorted([*rows, *truncates.values()], key=place_of)


def require_order(found: Sequence[Read]) -> None:
    """All messages of a key are in one partition, in the order of their changes."""
    by_key: dict[bytes | None, list[Read]] = {}
    for read in found:
        by_key.setdefault(read.key, []).append(read)
    for key, reads in by_key.items():
        if key is not None:
            assert len({read.partition for read in reads}) == 1, key
            assert all(place_of(one) < place_of(other) for one, other in pairwise(reads)), key


def replayed(address: str, topic: str, key: str = "id") -> dict[Any, dict[str, Any]]:
    """The rows after all changes, of flat JSON, by key. A change that is missing contradicts the next one."""
    found: dict[Any, dict[str, Any]] = {}
    for read in changes(address, topic):
        assert read.value is not None
        row = json.loads(read.value)
        values = {name: value for name, value in row.items() if not name.startswith("_")}
        unsent = json.loads(row["_unsent"]) if isinstance(row["_unsent"], str) else row["_unsent"] or ()
        match row["_operation"]:
            case "insert" | "read":
                assert row[key] not in found
                found[row[key]] = values
            case "update":
                former = found[row[key]]
                found[row[key]] = values | {name: former[name] for name in unsent}
            case "delete":
                del found[row[key]]
            case "truncate":
                found = {}
    return found
