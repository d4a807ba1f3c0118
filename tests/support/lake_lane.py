"""A lane into a Delta lake as a process of its own, to be killed: `python -m tests.support.lake_lane <directory>`."""

from __future__ import annotations

import sys
from dataclasses import replace
from uuid import uuid4

from airflow_parallel_apply.pipeline.model.change import ReplicaIdentity
from airflow_parallel_apply.pipeline.target.steps import Merge
from tests.support.lake import LakeRig
from tests.support.log_rows import Row, relation

A = relation(1, "a", "id v", key="id")
B = relation(2, "b", "id v", key="id")
LOOSE = relation(3, "loose", "v")
BAG = replace(relation(4, "bag", "v"), replica_identity=ReplicaIdentity.FULL)
TABLES = [A, B, LOOSE, BAG]
LAST = 30


def rows_of(seqno: int) -> list[Row]:
    """One transaction: it changes a row of each table with a key, adds one to each table but the multiset, where it
    adds two equal ones and deletes one, unless it is the first.
    """
    word = str(seqno)
    first = "I" if seqno == 0 else "U"
    changed = [Row(seqno=seqno, operation=first, values=("0", word), relation_id=of) for of in (1, 2)]
    added = [Row(seqno=seqno, operation="I", values=(f"k{word}", word), relation_id=of) for of in (1, 2)]
    bag = [Row(seqno=seqno, operation=one, values=("x",), relation_id=4) for one in ("IID" if seqno else "I")]
    return [*changed, *added, Row(seqno=seqno, operation="I", values=(word,), relation_id=3), *bag]


def main(url: str) -> None:
    """Units of one or two transactions, each under a claim of its own, up to the last one."""
    rig = LakeRig(url, TABLES)
    while True:
        claim = uuid4().hex
        target = rig.open()
        reached = target.take(0, generation=1, token=claim).seqno
        print(reached, flush=True)
        if reached == LAST:
            return
        last = min(reached + 1 + reached % 2, LAST)
        unit = rig.unit(reached, last, claim=claim)
        rows = [row for seqno in range(reached + 1, last + 1) for row in rows_of(seqno)]
        target.commit(unit, [Merge(rig.stage(unit, rows))])


if __name__ == "__main__":
    main(sys.argv[1])
