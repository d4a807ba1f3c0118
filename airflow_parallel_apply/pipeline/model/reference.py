"""Foreign keys that act: they change or delete rows of the table that refers, by themselves."""

from __future__ import annotations

from dataclasses import dataclass

Name = tuple[str, str]
"""Schema and name of a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A foreign key. `holder`: the child, or that partition of it which alone has the key. `referred`: the parent, or
    that partition of it which alone is referred to. `columns`: the child's columns and those that they refer to, in
    pairs. `on_delete`, `on_update`: `cascade`, `set null`, `set default`; empty where the server only refuses.
    `emptied`: the columns that `on_delete` sets, where they are not all.
    """

    name: str
    child: Name
    holder: Name
    parent: Name
    referred: Name
    columns: frozenset[tuple[str, str]]
    on_delete: str
    on_update: str
    emptied: frozenset[str] = frozenset()

    @property
    def is_of_partition(self) -> bool:
        """True if it holds for rows of one partition, or refers to them. Which these are, each database decides."""
        return self.holder != self.child or self.referred != self.parent

    def does_all_of(self, other: Reference) -> bool:
        """True if this key does whatever the other one does, to the same rows."""
        return (
            (self.child, self.parent, self.columns) == (other.child, other.parent, other.columns)
            and not (self.is_of_partition or other.is_of_partition)
            and other.on_delete in ("", self.on_delete)
            and other.on_update in ("", self.on_update)
            and (not other.on_delete or self.emptied == other.emptied)
        )
