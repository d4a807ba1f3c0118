"""Rows that left a table together, of which none is sent: those of a partition that was detached or dropped."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from airflow_parallel_apply.pipeline.model.change import Relation

REMOVAL_PREFIX: Final = "parallel_apply.removal"
"""The prefix of a message that tells of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneRows:
    """`relation_id`: the definition of their table by then. `condition`: SQL that they met, and no others of the table.
    `keys`: the columns that it names, as number, name and type.
    """

    relation_id: int
    condition: str
    keys: tuple[tuple[int, str, str], ...]

    def to_text(self) -> str:
        """The form that the log keeps."""
        return json.dumps({"relation_id": self.relation_id, "condition": self.condition, "keys": self.keys})

    @classmethod
    def from_text(cls, text: str) -> GoneRows:
        """Inverse of `to_text`."""
        value = json.loads(text)
        keys = tuple((number, name, type_name) for number, name, type_name in value["keys"])
        return cls(relation_id=value["relation_id"], condition=value["condition"], keys=keys)

    def is_of(self, relation: Relation) -> bool:
        """True if a definition of the table has these columns under the same names, and with the same types."""
        known = {column.number: (column.name, column.type_name) for column in relation.columns}
        return all(known.get(number) == (name, type_name) for number, name, type_name in self.keys)
