"""Random transactions over the tables of every awkward kind: the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import psycopg

from tests.support.contending_writer import ContendingWriter

_TRUNCATED: Final = (
    "bag",
    "full_keyed",
    "rich",
    "numbers",
    "parent",
    "ONLY parent",
    "both_parts",
    "log_only, child",
    "seat, room",
    "owner, owned",
)

_RICH: Final[dict[str, list[str]]] = {
    "m": ["sad", "so so", 'it\'s "fine", ok'],
    "ms": ['{sad,NULL,"so so"}', "{}"],
    "c": ['(1.50,"a ""b"", c")', "(,)", '(,"")'],
    "cs": ['{"(1,a)",NULL,"(,\\"x\\")"}'],
    "d": ["1", "999"],
    "w": ['{"",NULL,"null","a,b","\\\\"}', "{}"],
    "grid": ["{{1,2},{3,NULL}}", "[-1:0][5:5]={{1},{2}}", "[0:1]={7,8}"],
    "r": ["[1,5)", "empty", "(,)"],
    "mr": ["{[1.0,2.50),(3,)}", "{}"],
    "ts": ["[2020-01-01 00:00+02,infinity]"],
    "b": ["\\x00ff5c", "\\x"],
    "bits": ["101", ""],
    "i": ["1 year -2 days 03:04:05.678", "-1 mon", "infinity"],
    "money": ["-1234.50", "92233720368547758.07"],
    "net": ["10.0.0.1/8", "::1", "1.2.3.4/32"],
    "cidr": ["10.0.0.0/8"],
    "mac": ["08:00:2b:01:02:03"],
    "js": ['{"a" : 1,  "a":2}', "null", '"\\u00e9"'],
    "jb": ['{"b": 1.50, "a": [null]}'],
    "tv": ["'a':1A 'b c':2,3", ""],
    "tq": ["'a' & !'b' <-> 'c'"],
    "poly": ["((0,0),(1,1e-30))"],
    '"char"': ["x", "\\", ""],
    "f": ["NaN", "-Infinity", "0.1", "-0", "1e308", "5e-324"],
    "g": ["3.4028235e38", "-0", "NaN"],
    "lsn": ["16/B374D848"],
    "x": ["18446744073709551615"],
}


class Writer(ContendingWriter):
    """Random transactions at the source; the same for the same seed. `barriers`: with truncates, DDL and key changes
    that leave a value unsent; every sixth transaction is critical then, and without them none is.
    """

    def __init__(self, connection: psycopg.Connection[Any], seed: int, *, barriers: bool = True) -> None:
        super().__init__(connection, random.Random(seed), barriers=barriers)
        self._actions: list[Callable[[], None]] = [
            self._bag, self._bag, self._bag_parts, self._keyed, self._keyed, self._generated, self._rich, self._rich,
            self._toast, self._odd_keys, self._floats, self._log_only, self._chain, self._seat, self._seat, self._swap,
            self._hand_on, self._room, self._owner, self._owned, self._defined,
        ]  # fmt: skip

    def transaction(self) -> None:
        pick = self._random
        for _ in range(pick.randrange(1, 8)):
            if pick.random() < 0.15:
                self._aborted_subtransaction()
            pick.choice(self._actions)()
        if self._barriers and pick.random() < 0.02:
            self._run(f"TRUNCATE {pick.choice(_TRUNCATED)}")
        if self._barriers and pick.random() < 0.02:
            self._define()
        if pick.random() < 0.08:
            self._connection.rollback()
        # What a deferred constraint refuses is refused here.
        with suppress(psycopg.IntegrityError):
            self._connection.commit()

    def _aborted_subtransaction(self) -> None:
        self._connection.execute("SAVEPOINT s")
        for _ in range(2):
            self._random.choice(self._actions)()
        self._connection.execute("ROLLBACK TO s" if self._random.random() < 0.7 else "RELEASE s")

    def _bag(self) -> None:
        pick = self._random
        row = (
            pick.randrange(3),
            pick.choice([None, "", "b"]),
            pick.choice(['{"a" : 1}', None]),
            pick.choice(["(1,2)", None]),
        )
        match pick.randrange(4):
            case 0 | 1:
                values = (*row, pick.choice(["1.0", "1.00", None]))
                self._run(
                    "INSERT INTO bag SELECT %s, %s, %s::json, %s::point, %s::numeric FROM generate_series(1, 3)",
                    *values,
                )
            case 2:
                self._run(
                    "UPDATE bag SET b = %s, a = a + 1 WHERE ctid = (SELECT min(ctid) FROM bag WHERE a = %s)",
                    row[1],
                    row[0],
                )
            case _:
                self._run("DELETE FROM bag WHERE ctid IN (SELECT ctid FROM bag WHERE a = %s LIMIT 2)", row[0])

    def _bag_parts(self) -> None:
        pick = self._random
        match pick.randrange(3):
            case 0:
                self._run("INSERT INTO bag_parts SELECT i % 3, 'same' FROM generate_series(1, 4) i")
            case 1:
                self._run(
                    "UPDATE bag_parts SET id = %s, v = %s WHERE id = %s",
                    pick.randrange(4),
                    self._text(),
                    pick.randrange(4),
                )
            case _:
                self._run("DELETE FROM bag_parts WHERE id = %s", pick.randrange(4))

    def _keyed(self) -> None:
        pick = self._random
        table, key = pick.choice([
            ("full_keyed", "id"), ("source_parts", "id"), ("target_parts", "id"), ("parent", "id"), ("child", "id"),
            ("numbers", "k"), ('"Odd Schema"."Order ""x"" %%s"', '"Id"'), ("by_index", "code"), ("both_parts", "id"),
            ("full_by_index", "code"),
        ])  # fmt: skip
        value = '"select"' if "Odd" in table else "v"
        other = {"by_index": ", id", "both_parts": ", region", "full_by_index": ", n"}.get(table, "")
        number = str(self._id())
        if table == "numbers":
            number = f"{number}.{'0' * pick.randrange(3)}" if pick.random() < 0.5 else f"-{number}e-3"
        third = {
            "by_index": [self._id()],
            "both_parts": [pick.choice("abc")],
            "full_by_index": [pick.randrange(3)],
        }.get(table, [])
        match pick.randrange(5):
            case 0 | 1:
                marks = ", %s" * len(third)
                self._run(
                    f"INSERT INTO {table} ({key}, {value}{other}) VALUES (%s, %s{marks})", number, self._text(), *third
                )
            case 2:
                self._run(f"UPDATE {table} SET {value} = %s WHERE {key} = %s", self._text(), number)
            case 3:
                self._run(f"UPDATE {table} SET {key} = %s WHERE {key} = %s", str(self._id()), number)
            case _:
                self._run(f"DELETE FROM {table} WHERE {key} = %s", number)

    def _chain(self) -> None:
        """Keys that move on, and one that comes back."""
        first = self._id()
        for one, other in ((first, 1000), (first + 1, first), (first + 2, first + 1), (1000, first + 2)):
            self._run("UPDATE full_keyed SET id = %s WHERE id = %s", other, one)
            if self._barriers:
                self._run("UPDATE toast SET id = %s WHERE id = %s", other, one)

    def _generated(self) -> None:
        pick = self._random
        match pick.randrange(4):
            case 0:
                self._run("INSERT INTO generated (a) VALUES (%s)", pick.choice([None, 1, 2]))
            case 1:
                self._run("INSERT INTO generated (id, a) OVERRIDING SYSTEM VALUE VALUES (%s, 5)", -self._id())
            case 2:
                self._run("UPDATE generated SET a = a + 1, n = n + 1 WHERE id %% 3 = %s", pick.randrange(3))
            case _:
                self._run("DELETE FROM generated WHERE id %% 7 = %s", pick.randrange(7))

    def _rich(self) -> None:
        pick = self._random
        chosen = pick.sample(sorted(_RICH), 6)
        values = [pick.choice([None, *_RICH[name]]) if name != "d" else pick.choice(_RICH[name]) for name in chosen]
        match pick.randrange(4):
            case 0 | 1:
                names = ", ".join(["id", *chosen] if "d" in chosen else ["id", "d", *chosen])
                given = [self._id(), *values] if "d" in chosen else [self._id(), "2", *values]
                self._run(f"INSERT INTO rich ({names}) VALUES ({', '.join(['%s'] * len(given))})", *given)
            case 2:
                sets = ", ".join(f"{name} = %s" for name in chosen)
                self._run(f"UPDATE rich SET {sets} WHERE id = %s", *values, self._id())
            case _:
                self._run("DELETE FROM rich WHERE id = %s", self._id())

    def _toast(self) -> None:
        pick, number = self._random, self._id()
        match pick.randrange(6):
            case 0 | 1:
                size = pick.choice([10, 3000, 100_000, 1_000_000])
                self._run("INSERT INTO toast VALUES (%s, repeat(%s, %s), 'o', 0)", number, pick.choice("abc"), size)
            case 2:
                self._run("UPDATE toast SET n = n + 1 WHERE id = %s", number)
            case 3:
                self._run(
                    "UPDATE toast SET big = %s, other = repeat('z', 5000) WHERE id = %s",
                    pick.choice([None, "y" * 9000]),
                    number,
                )
            case 4 if self._barriers:
                self._run("UPDATE toast SET id = %s, n = -1 WHERE id = %s", self._id(), number)
            case _:
                self._run("DELETE FROM toast WHERE id = %s", number)

    def _odd_keys(self) -> None:
        pick = self._random
        key = (self._text() or "", self._text() or "", pick.choice(["", "a ", "a,b", "\\"]))
        key = (key[0], key[1][:40], key[2])
        match pick.randrange(4):
            case 0 | 1:
                self._run("INSERT INTO odd_keys VALUES (%s, %s, %s, %s)", *key, self._text())
            case 2:
                self._run("UPDATE odd_keys SET v = %s, b = %s WHERE a = %s", self._text(), key[1], key[0])
            case _:
                self._run("DELETE FROM odd_keys WHERE a = %s AND b = %s", *key[:2])

    def _floats(self) -> None:
        pick = self._random
        key = (
            pick.choice(["0", "-0", "NaN", "Infinity", "0.1", "1e22"]),
            pick.choice(["infinity", "-infinity", "2024-02-29 01:02:03.000001+03", "0044-03-15 BC"]),
        )
        match pick.randrange(3):
            case 0:
                self._run("INSERT INTO floats VALUES (%s, %s, %s)", *key, self._text())
            case 1:
                self._run(
                    "UPDATE floats SET v = %s, k = %s WHERE k = %s",
                    self._text(),
                    pick.choice(["0", "-0", "7.5"]),
                    key[0],
                )
            case _:
                self._run("DELETE FROM floats WHERE k = %s", key[0])

    def _defined(self) -> None:
        """A table whose columns come and go."""
        if self._random.random() < 0.7:
            self._run("INSERT INTO defined (id, v) VALUES (%s, %s)", self._id(), self._text())
        else:
            self._run("UPDATE defined SET id = %s WHERE id = %s", self._id(), self._id())

    def _define(self) -> None:
        """DDL, with a message or without one, with rows before and behind it; undone now and then."""
        pick = self._random
        ddl, told = self._definition()
        self._defined()
        self._connection.execute("SAVEPOINT ddl")
        self._connection.execute(ddl)  # type: ignore[arg-type]
        if told:
            self._connection.execute("SELECT parallel_apply.send_ddl(%s)", [ddl])
        self._defined()
        if pick.random() < 0.3:
            self._connection.execute("ROLLBACK TO ddl")
        # Without a message only a row tells what the columns are now.
        self._run("INSERT INTO defined (id) VALUES (%s) ON CONFLICT (id) DO UPDATE SET v = NULL", self._id())

    def _definition(self) -> tuple[str, bool]:
        """Only a message can tell the default of a column that is gone before it is captured; others stay."""
        pick = self._random
        columns = self._connection.execute(
            "SELECT attnum, attname FROM pg_attribute WHERE attrelid = 'defined'::regclass AND attnum > 0 ORDER BY 1"
        ).fetchall()
        going = [name for _, name in columns if name.startswith("goes")]
        if going and pick.random() < 0.5:
            return f"ALTER TABLE defined DROP COLUMN {pick.choice(going)}", pick.random() < 0.5
        number = columns[-1][0] + 1
        told = pick.random() < 0.6
        name = f"{'goes' if told else 'stays'}_{number}"
        return f"ALTER TABLE defined ADD COLUMN {name} integer DEFAULT {number}", told

    def _log_only(self) -> None:
        self._run(
            "INSERT INTO log_only SELECT now(), %s FROM generate_series(1, %s)", self._text(), self._random.randrange(4)
        )


def write_awkwardly(dsn: str, transactions: int, *, seed: int, barriers: bool = True) -> None:
    """Write random transactions: see `Writer`."""
    with psycopg.connect(dsn) as connection:
        writer = Writer(connection, seed, barriers=barriers)
        for _ in range(transactions):
            writer.transaction()
