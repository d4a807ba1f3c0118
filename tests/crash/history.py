"""A source that is written at random: hot rows, key changes, unsent wide values, truncates, DDL, rows without a key,
equal rows of which one changes, unique values handed on, parents with children.

Every statement is valid whatever the tables hold, so that a seed gives the same statements again.
"""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import psycopg

from tests.crash.scene import Scene
from tests.support.awkward_writer import Writer
from tests.support.ddl_messages import install

TABLES = (
    "CREATE TABLE hot (id integer PRIMARY KEY, n bigint, v text)",
    "CREATE TABLE item (id integer PRIMARY KEY, n integer, v text, big text)",
    "ALTER TABLE item ALTER big SET STORAGE EXTERNAL",
    "CREATE TABLE pair (a text, b numeric, v timestamptz, PRIMARY KEY (b, a))",
    "CREATE TABLE entry (at integer, note text)",
    "CREATE TABLE bag (a integer, note text)",
    "ALTER TABLE bag REPLICA IDENTITY FULL",
    "CREATE TABLE seat (id integer PRIMARY KEY, place integer UNIQUE)",
    "CREATE TABLE parent (id integer PRIMARY KEY)",
    "CREATE TABLE child (id integer PRIMARY KEY, parent integer REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE)",
)

_KEYS = 400
_FEW = 40
"""The number of rows that are in each other's way."""
_TRUNCATED = ("item", "entry", "pair", "item, entry", "bag, seat", "parent, child")
_PAUSE_SECONDS = 0.04


class History(ABC):
    """Writes at the source: `burst`s when asked, and a trickle from a thread of its own inside `trickling`."""

    @abstractmethod
    def transaction(self) -> None:
        """One, at random."""

    @abstractmethod
    def unsettle(self, dice: random.Random) -> None:
        """Change tables as a whole, by chance."""

    @abstractmethod
    def close(self) -> None:
        """Its connection."""

    def burst(self, transactions: int) -> None:
        for _ in range(transactions):
            self.transaction()

    @contextmanager
    def trickling(self) -> Iterator[None]:
        """The source goes on writing meanwhile."""
        ended = threading.Event()
        failures: list[psycopg.Error] = []

        def write() -> None:
            try:
                while not ended.wait(_PAUSE_SECONDS):
                    self.transaction()
            except psycopg.Error as error:
                failures.append(error)

        thread = threading.Thread(target=write, name="writer")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        if failures:
            raise failures[0]


class AwkwardHistory(History):
    """Over the tables of every awkward kind: now with DDL and truncates among its transactions, which one lane replays,
    now without, so that channels apply it and get into each other's way.
    """

    def __init__(self, dsn: str, seed: int) -> None:
        install(dsn)
        self._connection = psycopg.connect(dsn)
        self._connection.execute("SET synchronous_commit = off")
        self._connection.commit()
        self._writers = [Writer(self._connection, seed, barriers=barriers) for barriers in (True, False)]
        self._writer = self._writers[0]

    def transaction(self) -> None:
        self._writer.transaction()

    def unsettle(self, dice: random.Random) -> None:
        self._writer = dice.choice(self._writers)

    def close(self) -> None:
        self._connection.close()


class EverydayHistory(History):
    """Over `TABLES`."""

    def __init__(self, dsn: str, seed: int) -> None:
        install(dsn)
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.execute("SET synchronous_commit = off")
        self._random = random.Random(seed)
        self._numbers = count()
        self._columns = 0

    def unsettle(self, dice: random.Random) -> None:
        if dice.random() < 0.4:
            self._define()
        if dice.random() < 0.6:
            self._truncate()

    def _define(self) -> None:
        """One DDL, at the source and as a message."""
        if self._columns and self._random.random() < 0.4:
            ddl = f"ALTER TABLE item DROP COLUMN c{self._columns}"
            self._columns -= 1
        else:
            self._columns += 1
            ddl = f"ALTER TABLE item ADD COLUMN c{self._columns} integer DEFAULT {self._columns}"
        with self._connection.transaction():
            self._connection.execute(ddl)
            self._connection.execute("SELECT parallel_apply.send_ddl(%s)", [ddl])
            for _ in range(self._random.randint(0, 3)):
                self._connection.execute(self._statement())

    def _truncate(self) -> None:
        """With new rows behind it in the same transaction, now and then."""
        with self._connection.transaction():
            self._connection.execute(f"TRUNCATE {self._random.choice(_TRUNCATED)}")
            for _ in range(self._random.randint(0, 3)):
                self._connection.execute(self._statement())

    def close(self) -> None:
        self._connection.close()

    def transaction(self) -> None:
        if self._random.random() < 0.005:
            self._truncate()
            return
        with self._connection.transaction():
            for _ in range(self._random.choice([1, 1, 1, 2, 5])):
                self._connection.execute(self._statement())

    def _statement(self) -> str:
        dice, number = self._random, next(self._numbers)
        key = dice.randrange(_KEYS)
        match dice.choices(range(11), weights=[25, 18, 13, 7, 7, 5, 4, 10, 8, 10, 8])[0]:
            case 0:
                return (
                    f"INSERT INTO hot VALUES ({key % 5}, 1, 'v{number}')"
                    " ON CONFLICT (id) DO UPDATE SET n = hot.n + 1, v = excluded.v"
                )
            case 1:
                return (
                    f"INSERT INTO item (id, n, v, big) SELECT i, {number}, 'v' || i,"
                    " CASE WHEN i % 8 = 0 THEN repeat(md5(i::text), 100) END"
                    f" FROM generate_series({key}, {key + dice.randrange(20)}) i ON CONFLICT DO NOTHING"
                )
            case 2:
                return f"UPDATE item SET n = {number} WHERE id BETWEEN {key} AND {key + 5}"
            case 3:
                other = dice.randrange(_KEYS)
                return (
                    f"UPDATE item SET id = {other}, v = 'moved{number}' WHERE id = {key}"
                    f" AND NOT EXISTS (SELECT FROM item WHERE id = {other})"
                )
            case 4:
                return f"DELETE FROM item WHERE id BETWEEN {key} AND {key + 8}"
            case 5:
                return (
                    f"INSERT INTO pair SELECT 'a' || i % 3, i / 7.0, '2026-01-01'::timestamptz + i * '1 s'::interval"
                    f" FROM generate_series({key}, {key + 30}) i ON CONFLICT (b, a) DO UPDATE SET v = now()"
                )
            case 6:
                return f"DELETE FROM pair WHERE b < {key / 7.0}"
            case 7:
                return f"INSERT INTO entry SELECT {number}, 'same' FROM generate_series(1, {dice.randint(1, 4)})"
            case 8:
                return self._of_equal_rows(key % 4)
            case 9:
                return self._handed_on(key % _FEW, dice.randrange(_FEW))
            case _:
                return self._of_a_family(key % _FEW, number)

    def _of_equal_rows(self, a: int) -> str:
        one = f"ctid = (SELECT min(ctid) FROM bag WHERE a = {a})"
        return self._random.choice(
            [
                f"INSERT INTO bag SELECT {a}, 'same' FROM generate_series(1, 3)",
                f"UPDATE bag SET a = (a + 1) % 4 WHERE {one}",
                f"DELETE FROM bag WHERE {one}",
            ]
        )

    def _handed_on(self, key: int, place: int) -> str:
        """A place goes to another row, within a transaction or a statement."""
        return self._random.choice(
            [
                f"INSERT INTO seat VALUES ({key}, {place}) ON CONFLICT DO NOTHING",
                f"UPDATE seat SET place = NULL WHERE place = {place}; UPDATE seat SET place = {place} WHERE id = {key}",
                f"DELETE FROM seat WHERE place = {place} OR id = {key}; INSERT INTO seat VALUES ({key}, {place})",
                "UPDATE seat SET place = place + 1000; UPDATE seat SET place = (place - 999) % 40",
            ]
        )

    def _of_a_family(self, key: int, number: int) -> str:
        return self._random.choice(
            [
                f"INSERT INTO parent VALUES ({key}) ON CONFLICT DO NOTHING; INSERT INTO child VALUES ({number}, {key})",
                f"UPDATE parent SET id = id + 1000 WHERE id = {key} AND NOT EXISTS"
                f" (SELECT FROM parent WHERE id = {key + 1000})",
                f"DELETE FROM parent WHERE id IN ({key}, {key + 1000})",
                f"DELETE FROM child WHERE id % 9 = {key % 9}",
            ]
        )


def write_units(scene: Scene) -> Scene:
    """Several units for each of three channels, a serialization point, rows without a key."""
    scene.rig.both(
        "CREATE TABLE t (id integer PRIMARY KEY, v text)",
        "CREATE TABLE entry (at integer, note text)",
    )
    scene.rig.prepare()
    scene.rig.write(
        *(f"INSERT INTO t SELECT i, 'a' FROM generate_series({start}, {start + 99}) i" for start in range(0, 900, 100)),
        "INSERT INTO entry SELECT i % 3, 'same' FROM generate_series(1, 200) i",
    )
    scene.rig.transaction("TRUNCATE t", "INSERT INTO t SELECT i, 'b' FROM generate_series(1, 200) i")
    scene.rig.write(
        *(f"UPDATE t SET v = v || {step} WHERE id % 4 = {step % 4}" for step in range(8)),
        "INSERT INTO entry SELECT i % 3, 'more' FROM generate_series(1, 200) i",
        "UPDATE t SET id = id + 1000 WHERE id % 7 = 0",
    )
    scene.rig = scene.rig.having(epoch_max_changes=150, unit_max_bytes=1000)
    scene.step_changes = 500
    return scene
