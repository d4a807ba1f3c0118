"""Random changes of rows that are in each other's way: unique places, exclusions, foreign keys."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg


class ContendingWriter:
    """Changes the tables `seat`, `full_seat`, `room`, `owner` and `owned`. `barriers`: see `awkward_writer.Writer`."""

    def __init__(self, connection: psycopg.Connection[Any], generator: random.Random, *, barriers: bool) -> None:
        self._connection = connection
        self._barriers = barriers
        self._random = generator

    def _run(self, text: LiteralString | str, *values: object) -> None:
        """Run it; a statement that a unique index refuses is undone alone, as an application would."""
        with _tolerant(self._connection):
            self._connection.execute(text, values or None)  # type: ignore[arg-type]

    def _text(self) -> str | None:
        return self._random.choice(
            [
                None,
                "",
                "\\N",
                "\\.",
                "tab\there",
                "line\nbreak\r\n",
                "back\\slash",
                "'quoted\" {,}",
                "é 漢字 🙂",
                "x" * 300,
            ]
        )

    def _id(self) -> int:
        return self._random.randrange(40)

    def _seat(self) -> None:
        """Rows that want each other's places, of two tables."""
        pick, number, place = self._random, self._id(), self._random.randrange(30)
        match pick.randrange(7):
            case 0 | 1:
                self._run(
                    "INSERT INTO seat VALUES (%s, %s, %s, %s, %s, repeat(md5(%s), %s))",
                    number, place, f"Code{place % 9}", pick.random() < 0.5, self._text(), str(place),
                    200 if self._barriers else 2,
                )  # fmt: skip
            case 2:
                self._run("UPDATE seat SET live = NOT live WHERE id = %s", number)
            case 3:
                self._run("DELETE FROM seat WHERE place = %s", place)
            case 4:
                self._run("UPDATE seat SET id = %s, place = %s WHERE id = %s", self._id(), place, number)
            case 5:
                self._run("INSERT INTO full_seat VALUES (%s, %s, %s)", number, place, self._text())
            case _:
                self._run("DELETE FROM full_seat WHERE id = %s", number)

    def _swap(self) -> None:
        """Two rows exchange their places; a third takes the key of one that goes."""
        pick = self._random
        table = pick.choice(["seat", "full_seat"])
        rows = self._connection.execute(f"SELECT id, place FROM {table} ORDER BY id").fetchall()  # type: ignore[arg-type]
        if len(rows) < 3:
            return
        (one, place), (other, other_place), (third, third_place) = pick.sample(rows, 3)
        for value, number in ((-1, one), (place, other), (other_place, one)):
            self._run(f"UPDATE {table} SET place = %s WHERE id = %s", value, number)
        if pick.random() < 0.3:
            self._run(f"DELETE FROM {table} WHERE id = %s", third)
            self._run(f"UPDATE {table} SET id = %s, place = %s WHERE id = %s", third, third_place, one)

    def _hand_on(self) -> None:
        """Every row passes its place on to the next one, by way of places that nobody has."""
        turn = self._random.randrange(1, 30)
        self._run("UPDATE seat SET place = place + 1000")
        self._run("UPDATE seat SET place = (place - 1000 + %s) %% 30", turn)

    def _room(self) -> None:
        pick, number, low = self._random, self._id(), self._random.randrange(60)
        match pick.randrange(4):
            case 0 | 1:
                self._run("INSERT INTO room VALUES (%s, int4range(%s, %s), 'r')", number, low, low + 3)
            case 2:
                self._run(
                    "UPDATE room SET during = int4range(%s, %s), v = %s WHERE id = %s",
                    low, low + 2, self._text(), number,
                )  # fmt: skip
            case _:
                self._run("DELETE FROM room WHERE during && int4range(%s, %s)", low, low + 6)

    def _owner(self) -> None:
        pick, number, code = self._random, self._id(), self._id()
        match pick.randrange(5):
            case 0 | 1:
                self._run("INSERT INTO owner VALUES (%s, %s)", number, code)
            case 2:
                self._run("UPDATE owner SET code = %s WHERE id = %s", code, number)
            case 3:
                self._run("UPDATE owner SET id = %s WHERE id = %s", code, number)
            case _:
                self._run("DELETE FROM owner WHERE id = %s", number)

    def _owned(self) -> None:
        pick, number = self._random, self._id()
        match pick.randrange(4):
            case 0 | 1:
                self._run(
                    "INSERT INTO owned SELECT %s, id, code, %s FROM owner WHERE id >= %s ORDER BY id LIMIT 1",
                    number, self._id(), self._id(),
                )  # fmt: skip
            case 2:
                self._run("UPDATE owned SET place = (place + %s) %% 40", number)
            case _:
                self._run("DELETE FROM owned WHERE id = %s", number)


@contextmanager
def _tolerant(connection: psycopg.Connection[Any]) -> Iterator[None]:
    connection.execute("SAVEPOINT one")
    try:
        yield
    except (psycopg.errors.IntegrityError, psycopg.errors.DataError, psycopg.errors.ObjectInUse):
        connection.execute("ROLLBACK TO one")
    else:
        connection.execute("RELEASE one")
