"""The grammar's model of what exists at the source, and the kinds of tables that a trial begins with."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tests.hunt.values import KEYS, TIMES, VALUES, literal


@dataclass(kw_only=True)
class Column:
    """`is_sent`: not generated, so that a statement may give it a value."""

    name: str
    type_name: str
    nullable: bool = True
    is_sent: bool = True


@dataclass(kw_only=True)
class Table:
    """As the source has it after the steps that are written so far. `id_type` None: its key is of an awkward type."""

    name: str
    create: list[str]
    columns: list[Column]
    schema: str = "public"
    key: str | None = "id"
    """The number by which statements pick rows; None where rows are picked by their place."""
    takes_changes: bool = True
    """False: rows cannot be told apart at the source, which sends inserts only."""
    leaves: list[str] = field(default_factory=list)
    more: list[str] = field(default_factory=list)
    """Rows that no statement of this model writes."""
    next_id: int = 1

    @property
    def path(self) -> str:
        return f"{self.schema}.{self.name}"

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    def plain(self) -> list[Column]:
        """Columns that a migration may touch: neither the key nor generated ones."""
        return [column for column in self.columns if column.is_sent and column.name not in (self.key, "k")]

    def insert(self, dice: random.Random, count: int) -> str:
        rows = []
        sent = [column for column in self.columns if column.is_sent]
        for _ in range(count):
            values = []
            for column in sent:
                if column.name == self.key:
                    values.append(str(self.next_id))
                    self.next_id += 1
                else:
                    values.append(literal(dice, column.type_name, nullable=column.nullable))
            rows.append(f"({', '.join(values)})")
        names = ", ".join(column.name for column in sent)
        return f"INSERT INTO {self.path} ({names}) VALUES {', '.join(rows)} ON CONFLICT DO NOTHING"

    def some(self, dice: random.Random) -> str:
        """A condition that some rows meet."""
        if self.key:
            return f"{self.key} % {dice.choice((3, 5, 7))} = {dice.randrange(3)}"
        which = dice.choice(("min", "max", ""))
        return f"ctid = (SELECT {which}(ctid) FROM {self.path})" if which else "true"

    def change(self, dice: random.Random) -> str:
        """An ordinary statement."""
        kind = dice.choice(("insert", "insert", "update", "update", "delete", "key"))
        plain = self.plain()
        if kind == "insert" or not self.takes_changes or (kind == "update" and not plain):
            return self.insert(dice, dice.randint(1, 6))
        if kind == "delete":
            return f"DELETE FROM {self.path} WHERE {self.some(dice)}"
        if kind == "key" and self.key and not self.leaves and self.column(self.key).is_sent:
            self.next_id += 10_000
            return f"UPDATE {self.path} SET {self.key} = {self.key} + 10000 WHERE {self.some(dice)}"
        column = dice.choice(plain or self.columns[-1:])
        value = literal(dice, column.type_name, nullable=column.nullable)
        return f"UPDATE {self.path} SET {column.name} = {value} WHERE {self.some(dice)}"


def _columns(dice: random.Random, count: int = 3) -> list[Column]:
    kinds = dice.sample(sorted(VALUES), count)
    return [Column(name=f"c{number}", type_name=kind) for number, kind in enumerate(kinds)]


def _made(name: str, columns: list[Column], *after: str, tail: str = "", identity: str = "", **more: object) -> Table:
    listed = ", ".join(f"{one.name} {one.type_name}{'' if one.nullable else ' NOT NULL'}" for one in columns)
    create = [f"CREATE TABLE public.{name} ({listed}{identity}){tail}", *after]
    return Table(name=name, create=create, columns=columns, **more)  # type: ignore[arg-type]


def _id() -> Column:
    return Column(name="id", type_name="integer", nullable=False)


def keyed(dice: random.Random, name: str) -> Table:
    return _made(name, [_id(), *_columns(dice)], identity=", PRIMARY KEY (id)")


def awkward_key(dice: random.Random, name: str) -> Table:
    kind = dice.choice((*KEYS, *TIMES * 3))
    columns = [Column(name="k", type_name=kind, nullable=False), *_columns(dice, 2)]
    return _made(name, columns, identity=", PRIMARY KEY (k)", key=None)


def composite_key(dice: random.Random, name: str) -> Table:
    columns = [Column(name="k", type_name=dice.choice((*KEYS, *TIMES * 3)), nullable=False), _id(), *_columns(dice, 2)]
    return _made(name, columns, identity=", PRIMARY KEY (id, k)")


def by_index(dice: random.Random, name: str) -> Table:
    unique = f"CREATE UNIQUE INDEX {name}_u ON public.{name} (id)"
    use = f"ALTER TABLE public.{name} REPLICA IDENTITY USING INDEX {name}_u"
    return _made(name, [_id(), *_columns(dice)], unique, use)


def with_unique(dice: random.Random, name: str) -> Table:
    """A second unique column, that may hold NULL, whose values wander between keys."""
    columns = [_id(), Column(name="u", type_name="smallint"), *_columns(dice, 2)]
    return _made(name, columns, identity=", PRIMARY KEY (id), UNIQUE (u)")


def full(dice: random.Random, name: str) -> Table:
    return _made(name, [_id(), *_columns(dice)], f"ALTER TABLE public.{name} REPLICA IDENTITY FULL")


def nothing(dice: random.Random, name: str) -> Table:
    identity = f"ALTER TABLE public.{name} REPLICA IDENTITY NOTHING"
    return _made(name, [_id(), *_columns(dice)], identity, takes_changes=False)


def partitioned(dice: random.Random, name: str) -> Table:
    how = dice.choice(("range", "list", "hash", "below"))
    columns = [_id(), *_columns(dice, 2)]
    leaf = f"CREATE TABLE public.{name}_{{}} PARTITION OF public.{name} "
    ranged = [leaf.format(n) + f"FOR VALUES FROM ({n * 1000}) TO ({(n + 1) * 1000})" for n in range(2)]
    after = {
        "range": [*ranged, leaf.format("rest") + "DEFAULT"],
        "list": [leaf.format(0) + "FOR VALUES IN (1, 2, 3, 4, 5, 6)", leaf.format("rest") + "DEFAULT"],
        "hash": [leaf.format(n) + f"FOR VALUES WITH (MODULUS 2, REMAINDER {n})" for n in range(2)],
        "below": [
            ranged[0], leaf.format("rest") + "DEFAULT PARTITION BY HASH (id)",
            *(f"CREATE TABLE public.{name}_r{n} PARTITION OF public.{name}_rest "
              f"FOR VALUES WITH (MODULUS 2, REMAINDER {n})" for n in range(2)),
        ],
    }[how]  # fmt: skip
    kind = "RANGE" if how == "below" else how.upper()
    leaves = [f"{name}_0"] if how != "hash" else [f"{name}_0", f"{name}_1"]
    tail = f" PARTITION BY {kind} (id)"
    return _made(name, columns, *after, identity=", PRIMARY KEY (id)", tail=tail, leaves=leaves)


def ranged(dice: random.Random, name: str, *, with_default: bool) -> Table:
    """By ranges of its key, as a partition manager keeps it: the last one takes what is ahead, or the default does."""
    leaf = f"CREATE TABLE public.{name}_{{}} PARTITION OF public.{name} "
    after = [leaf.format(n) + f"FOR VALUES FROM ({n * 1000}) TO ({(n + 1) * 1000})" for n in range(2)]
    after.append(leaf.format("rest") + ("DEFAULT" if with_default else "FOR VALUES FROM (10000) TO (400000)"))
    tail, leaves = " PARTITION BY RANGE (id)", [f"{name}_0", f"{name}_1"]
    return _made(name, [_id(), *_columns(dice, 2)], *after, identity=", PRIMARY KEY (id)", tail=tail, leaves=leaves)


def inherited(dice: random.Random, name: str) -> Table:
    child = f"CREATE TABLE public.{name}_child (PRIMARY KEY (id), extra text) INHERITS (public.{name})"
    rows = f"INSERT INTO public.{name}_child (id, extra) SELECT i, 'x' FROM generate_series(90001, 90009) i"
    return _made(name, [_id(), *_columns(dice)], child, identity=", PRIMARY KEY (id)", more=[rows])


def generated(dice: random.Random, name: str) -> Table:
    columns = [_id(), *_columns(dice, 2)]
    made = _made(name, columns, identity=f", g integer GENERATED ALWAYS AS (id * 2) {dice.choice(('STORED', ''))}")
    made.create[0] = made.create[0].removesuffix(")") + ", PRIMARY KEY (id))"
    columns.append(Column(name="g", type_name="integer", is_sent=False))
    return made


def identity(dice: random.Random, name: str) -> Table:
    columns = [_id(), *_columns(dice, 2)]
    made = _made(name, columns, identity=", PRIMARY KEY (id)")
    made.create[0] = made.create[0].replace(
        "id integer NOT NULL", f"id integer GENERATED {dice.choice(('BY DEFAULT', 'ALWAYS'))} AS IDENTITY"
    )
    if "ALWAYS AS" in made.create[0]:
        columns[0].is_sent = False
    return made


KINDS: Final[dict[str, Callable[[random.Random, str], Table]]] = {
    "keyed": keyed, "awkward key": awkward_key, "composite key": composite_key, "unique index": by_index,
    "second unique": with_unique, "full": full, "nothing": nothing, "partitioned": partitioned,
    "inherited": inherited, "generated": generated, "identity": identity,
}  # fmt: skip
