"""Types that a table uses for the first time, and that were altered after they were made: rows may have been written to
it in between, since the last capture, and they print another text now.

The catalog shows it: the entry of a label or an attribute that was added or altered later was written by another
command than the type. What was over when the table was registered cannot have met any row. A DDL message that names the
type, in the transaction that altered it, acquits. Domains print what they are made of, whatever is altered of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_parallel_apply.pipeline.source.postgres.ddl.signed_messages import TYPE_WORDS, signed_messages, writers_of
from airflow_parallel_apply.pipeline.source.postgres.pending import Pending
from airflow_parallel_apply.pipeline.source.postgres.proof.histories import Pair
from airflow_parallel_apply.pipeline.source.postgres.session import statement


def altered_young_types(
    pending: Pending, pairs: Sequence[Pair], horizon: int | None
) -> Iterator[tuple[Pair, tuple[str, ...]]]:
    """Yield the tables with such types, and the types' names. `horizon`: that of the registration; where a log of an
    older version has none, it has no types either. Errors: psycopg's own.
    """
    labels, relations = ({pair: new(pair) for pair in pairs} for new in (_new_labels, _new_relations))
    asked = [[*frozenset().union(*found.values())] for found in (labels, relations)]
    if horizon is None or not any(asked):
        return
    arguments = {"labels": asked[0], "relations": asked[1], "horizon": horizon}
    types = pending.connection.execute(statement("young_types"), arguments).fetchall()
    if not types:
        return
    messages = signed_messages(pending)
    unsent = [
        (name, relation, made_of)
        for name, relation, name_then, made_of, writers in types
        if not writers_of(one for one in messages if one.mentions(TYPE_WORDS, name_then)).issuperset(writers)
    ]
    for pair in pairs:
        # A label that came to a type of before alters no other.
        names = tuple(
            name
            for name, relation, made_of in unsent
            if relation in relations[pair] or (made_of and labels[pair].issuperset(made_of))
        )
        if names:
            yield pair, names


def _new_labels(pair: Pair) -> frozenset[int]:
    """The oids of the entries of labels that were not registered."""
    before, after = pair
    return frozenset(oid for oid, *_ in after.labels) - {oid for oid, *_ in before.labels}


def _new_relations(pair: Pair) -> frozenset[int]:
    """The oids of the entries of composite types that were not registered."""
    before, after = pair
    return frozenset(oid for oid, _ in after.attributes) - {oid for oid, _ in before.attributes}
