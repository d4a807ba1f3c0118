"""Random transactions over tables whose rows are in each other's way, many channels: equal to the last byte."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from airflow_parallel_apply.pipeline.config import Consistency, EpochProtocol, PipelineConfig, Start, TablePatterns
from tests.support.rig import Rig
from tests.support.variants import gated

TABLES = (
    "CREATE TABLE item (id integer PRIMARY KEY, slot integer UNIQUE, code text, live boolean, v text, big text)",
    "ALTER TABLE item ALTER big SET STORAGE EXTERNAL",
    "CREATE UNIQUE INDEX ON item (lower(code)) WHERE live",
    "CREATE TABLE room (id integer PRIMARY KEY, during int4range, EXCLUDE USING gist (during WITH &&))",
    "CREATE TABLE parent (id integer PRIMARY KEY, code integer UNIQUE)",
    "CREATE TABLE child (id integer PRIMARY KEY, parent integer REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE,"
    " code integer REFERENCES parent (code) ON DELETE SET NULL ON UPDATE CASCADE, place integer,"
    " UNIQUE (place) DEFERRABLE INITIALLY DEFERRED)",
)

_KEYS = 40


def statement(dice: random.Random, number: int) -> str:
    key, other = dice.randrange(_KEYS), dice.randrange(_KEYS)
    return dice.choice(
        (
            f"INSERT INTO item VALUES ({key}, {other}, 'Code{other % 9}', {key % 2 == 0}, 'v{number}',"
            f" repeat(md5('{number}'), 100))",
            f"UPDATE item SET slot = {other}, v = 'v{number}' WHERE id = {key}",
            f"UPDATE item SET slot = CASE id WHEN {key} THEN -1 ELSE slot END WHERE id IN ({key}, {other})",
            f"UPDATE item SET live = NOT live WHERE id = {key}",
            f"UPDATE item SET id = {other} WHERE id = {key}",
            f"DELETE FROM item WHERE slot = {key}",
            f"INSERT INTO room VALUES ({key}, int4range({other}, {other + 3}))",
            f"UPDATE room SET during = int4range({other}, {other + 2}) WHERE id = {key}",
            f"DELETE FROM room WHERE during && int4range({other}, {other + 4})",
            f"INSERT INTO parent VALUES ({key}, {other})",
            f"UPDATE parent SET code = {other} WHERE id = {key}",
            f"UPDATE parent SET id = {other} WHERE id = {key}",
            f"DELETE FROM parent WHERE id = {key}",
            f"INSERT INTO child SELECT {number}, id, code, {number % _KEYS} FROM parent WHERE id >= {key} LIMIT 1",
            f"UPDATE child SET place = (place + {key}) % {_KEYS}",
            f"DELETE FROM child WHERE id % 7 = {key % 7}",
        )
    )


def write(dsn: str, dice: random.Random, transactions: int) -> None:
    """Statements that the source refuses are rolled back there, and the transaction goes on."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for _ in range(transactions):
            # A deferred constraint refuses at the commit.
            with suppress(psycopg.IntegrityError), connection.transaction():
                for _ in range(dice.choice((1, 1, 2, 4, 8))):
                    with suppress(psycopg.IntegrityError), connection.transaction():
                        connection.execute(statement(dice, dice.randrange(10**6)))
                if dice.random() < 0.2:
                    swap(connection, dice)


def swap(connection: psycopg.Connection, dice: random.Random) -> None:
    """Two rows exchange their values: what channels that are apart stumble over."""
    rows = connection.execute("SELECT id, slot FROM item WHERE slot IS NOT NULL ORDER BY id").fetchall()
    if len(rows) < 2:
        return
    (one, slot), (other, other_slot) = dice.sample(rows, 2)
    for value, key in ((None, one), (slot, other), (other_slot, one)):
        connection.execute("UPDATE item SET slot = %s WHERE id = %s", [value, key])


@gated
@pytest.mark.parametrize(
    ("seed", "lanes", "consistency", "protocol"),
    [
        (1, 4, Consistency.CHANNEL, EpochProtocol.AUTO),
        (2, 1, Consistency.CHANNEL, EpochProtocol.AUTO),
        (3, 8, Consistency.CHANNEL, EpochProtocol.AUTO),
        (4, 1, Consistency.EPOCH, EpochProtocol.LEADER_MERGE),
        (5, 3, Consistency.EPOCH, EpochProtocol.LEADER_MERGE),
        (6, 1, Consistency.EPOCH, EpochProtocol.TWO_PHASE),
        (7, 3, Consistency.EPOCH, EpochProtocol.TWO_PHASE),
    ],
)
def test_both_sides_are_equal_after_random_conflicts(
    source_dsn: str,
    target_dsn: str,
    tmp_path: Path,
    seed: int,
    lanes: int,
    consistency: Consistency,
    protocol: EpochProtocol,
) -> None:
    config = PipelineConfig(
        pipeline="p",
        log_url=str(tmp_path / "log"),
        start=Start.EMPTY,
        channels=8,
        lanes=lanes,
        tables=TablePatterns(include=("public.*",)),
        epoch_max_changes=40,
        consistency=consistency,
        epoch_protocol=protocol,
    )
    rig = Rig(config=config, source_dsn=source_dsn, target_dsn=target_dsn)
    rig.both(*TABLES)
    rig.prepare()
    dice = random.Random(seed)
    for _ in range(2):
        write(source_dsn, dice, 150)
        rig.run()
        comparison = rig.comparison()
        assert comparison.equal, comparison
    if consistency is Consistency.CHANNEL:
        assert rig.rows("SELECT sum(count) > 0 FROM parallel_apply.rework WHERE kind = 'merge point'") == [(True,)]
