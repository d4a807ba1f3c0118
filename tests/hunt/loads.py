"""Loads, restores and roles: rows that come in bulk, through other transactions, functions and owners than usual."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from tests.hunt.partitioning import sent
from tests.hunt.step import Step
from tests.hunt.tables import Table


def _keyed(tables: Sequence[Table]) -> list[Table]:
    return [one for one in tables if one.key and not one.more and one.column("id").is_sent and one.takes_changes]


def _filling(table: Table, first: int, last: int) -> str:
    return f"INSERT INTO {table.path} (id) SELECT i FROM generate_series({first}, {last}) i ON CONFLICT DO NOTHING"


def reloaded(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """Emptied and loaded again, in one transaction or in several; COPY FREEZE where it may."""
    able = [one for one in _keyed(tables) if not any(column.name == "k" for column in one.columns)]
    if not able:
        return upserts(dice, tables)
    table, first = dice.choice(able), dice.randrange(20_000, 90_000)
    truncate = f"TRUNCATE {table.path}"
    program = f"COPY {table.path} (id) FROM PROGRAM 'seq {first} {first + 200}'"
    load = dice.choice(
        (f"{program} WITH (FREEZE)" if not table.leaves else program, program, _filling(table, first, first + 200))
    )
    statements = dice.choice(
        ((f"{truncate}; {load}",), (truncate, load), (f"DELETE FROM {table.path}", load),
         (f"{truncate}; {load}; {truncate}; {load}; UPDATE {table.path} SET id = id + 1000000 WHERE id % 2 = 0",))
    )  # fmt: skip
    return [Step(do="source", sql=statements, kind="reloaded", options={"superuser": True}),
            Step(do="source", sql=(table.change(dice),))]  # fmt: skip


def upserts(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """INSERT … ON CONFLICT DO UPDATE and MERGE over the same keys, again and again."""
    able = [one for one in _keyed(tables) if "PRIMARY KEY (id)" in one.create[0] and one.plain()]
    if not able:
        table = dice.choice(tables)
        return [Step(do="transaction", sql=tuple(table.change(dice) for _ in range(20)), kind="upserts")]
    table = dice.choice(able)
    column = dice.choice(table.plain()).name
    low = dice.randrange(1, 30)
    rows = f"SELECT i AS id FROM generate_series({low}, {low + 60}) i"
    upsert = f"INSERT INTO {table.path} (id) {rows} ON CONFLICT (id) DO UPDATE SET {column} = {table.name}.{column}"
    merge = (
        f"MERGE INTO {table.path} t USING ({rows}) s ON t.id = s.id WHEN MATCHED AND s.id % 3 = 0 THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {column} = t.{column} WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)"
    )
    moved = f"UPDATE {table.path} SET id = -id WHERE id % 5 = 0"
    sql = tuple(dice.choice((upsert, merge, moved, table.change(dice))) for _ in range(dice.choice((4, 10))))
    return [Step(do=dice.choice(("source", "transaction")), sql=sql, kind="upserts")]


def savepoints(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """A transaction larger than the server decodes in memory, with parts that are rolled back."""
    able = _keyed(tables) or list(tables)
    table = dice.choice(able)
    fill = _filling(table, 100_000, 104_000) if table.key else table.insert(dice, 20)
    caught = "EXCEPTION WHEN OTHERS THEN NULL; END"
    undone = f"DO $$ BEGIN BEGIN DELETE FROM {table.path}; {fill}; RAISE division_by_zero; {caught}; END $$"
    kept = f"DO $$ BEGIN FOR i IN 1..40 LOOP BEGIN {table.change(dice)}; {caught}; END LOOP; END $$"
    sql = tuple(dice.sample((fill, undone, kept, table.change(dice), undone), 4))
    options = {"rollback": True} if dice.random() < 0.2 else {}
    small = Step(do="source", sql=("ALTER DATABASE hunt SET logical_decoding_work_mem = '64kB'",), kind="savepoints",
                 options={"superuser": True})  # fmt: skip
    return [small, Step(do="transaction", sql=sql, options=options, kind="savepoints")]


def prepared(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """Two-phase transactions of a transaction manager, rows or a migration in them, decided behind other runs."""
    table = dice.choice(tables)
    number = dice.randrange(1000)
    end = dice.choice(("COMMIT", "COMMIT", "ROLLBACK"))
    ddl = [f"ALTER TABLE {table.path} ADD COLUMN n{number} integer"] if dice.random() < 0.3 else []
    names = (table.name, f"n{number}", "prepared", "open") if ddl else ()
    rows = [table.change(dice) for _ in range(3)]
    other = dice.choice(tables)
    aside = "" if other is table and ddl else other.insert(dice, 2)
    return [
        Step(do="session", sql=("BEGIN", *ddl, *rows, f"PREPARE TRANSACTION 'xa{number}'"), options={"name": "xa"},
             kind="two-phase", names=names, by_hand=tuple(ddl)),
        *([Step(do="source", sql=(aside,))] if aside else []),
        *([Step(do="run")] if not ddl else []),
        Step(do="source", sql=(f"{end} PREPARED 'xa{number}'",), kind="two-phase", options={"superuser": True}),
    ]  # fmt: skip


def secured(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """Row security at the source, writers that have another role, functions that run as their owner."""
    table = dice.choice(tables)
    change = [table.change(dice) for _ in range(3)]
    force = dice.choice(("", f"; ALTER TABLE {table.path} FORCE ROW LEVEL SECURITY"))
    policy = f"; CREATE POLICY some ON {table.path} USING ({dice.choice(('true', 'false'))}) WITH CHECK (true)"
    guarded = Step(
        do="source", sql=(f"ALTER TABLE {table.path} ENABLE ROW LEVEL SECURITY{force}{policy}",), kind="row security",
        names=(table.name, "row security", "row-level security"),
    )  # fmt: skip
    definer = (
        "CREATE OR REPLACE FUNCTION public.written() RETURNS void LANGUAGE plpgsql SECURITY DEFINER "
        f"AS $$BEGIN {change[0]}; END$$",
        "GRANT EXECUTE ON FUNCTION public.written() TO plain", "SET ROLE plain; SELECT public.written(); RESET ROLE",
    )  # fmt: skip
    granted = (
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table.path} TO plain", f"SET ROLE plain; {change[1]}; RESET ROLE",
        f"SET session_replication_role = replica; {change[2]}",
    )  # fmt: skip
    roles = Step(do="source", sql=dice.choice((definer, granted)), kind="roles switched", options={"superuser": True})
    return dice.choice(([guarded, roles], [roles], [guarded, Step(do="source", sql=tuple(change)), roles]))


def restored_dump(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """`pg_restore --clean` over the live table: dropped, created, loaded, its key last; or its data alone."""
    able = [one for one in _keyed(tables) if one.create[0].endswith("PRIMARY KEY (id))") and not one.leaves]
    if not able:
        return reloaded(dice, tables)
    table = dice.choice(able)
    columns, kept = sent(table), f"dumped.{table.name}"
    key = f"ALTER TABLE ONLY {table.path} ADD CONSTRAINT {table.name}_pkey PRIMARY KEY (id)"
    load = f"INSERT INTO {table.path} ({columns}) SELECT {columns} FROM {kept}"
    again = [
        f"DROP TABLE IF EXISTS {table.path} CASCADE",
        f"CREATE TABLE {table.path} (LIKE {kept} INCLUDING DEFAULTS INCLUDING GENERATED)", load, key,
    ]  # fmt: skip
    data = [f"ALTER TABLE {table.path} DISABLE TRIGGER ALL", f"TRUNCATE TABLE ONLY {table.path}", load,
            f"ALTER TABLE {table.path} ENABLE TRIGGER ALL"]  # fmt: skip
    what, names = dice.choice(((again, (table.name,)), (again, (table.name,)), (data, ())))
    dump = (
        "CREATE SCHEMA IF NOT EXISTS dumped", f"CREATE TABLE {kept} (LIKE {table.path} INCLUDING ALL)",
        f"INSERT INTO {kept} ({columns}) SELECT {columns} FROM {table.path}",
    )  # fmt: skip
    by_hand = tuple(one for one in again[:2] if what is again)
    how = ("; ".join(what),) if dice.random() < 0.5 else tuple(what)
    return [
        Step(do="source", sql=dump, kind="dump restored"),
        *([Step(do="source", sql=(table.change(dice),))] if dice.random() < 0.7 else []),
        *([Step(do="run")] if dice.random() < 0.4 else []),
        Step(do="source", sql=how, kind="dump restored", names=names, by_hand=by_hand if names else ()),
    ]


def sequences(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """Restarted, cycled, set: nobody sends them, and rows go on."""
    table = dice.choice(tables)
    statements = (
        "CREATE SEQUENCE IF NOT EXISTS public.numbers", f"SELECT setval('public.numbers', {dice.randrange(1, 99)})",
        "ALTER SEQUENCE public.numbers RESTART WITH 5 INCREMENT BY -1 MINVALUE -9 CYCLE",
        "SELECT nextval('public.numbers') FROM generate_series(1, 40)",
        f"ALTER TABLE {table.path} ALTER COLUMN id RESTART WITH {dice.randrange(2000, 9000)}",
        f"ALTER TABLE {table.path} ALTER COLUMN id SET GENERATED BY DEFAULT",
    )  # fmt: skip
    names = (table.name, "id")
    return [Step(do="source", sql=statements, kind="sequences restarted", names=names, by_hand=statements[4:]),
            Step(do="source", sql=(table.insert(dice, 3),))]  # fmt: skip


def other_followers(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """Debezium's heartbeat and signal tables, slots and publications of others, messages of pglogical and its like."""
    table, number = dice.choice(tables), dice.randrange(1000)
    heartbeat, signal = f"public.debezium_heartbeat{number}", f"public.debezium_signal{number}"
    beats = (
        f"CREATE TABLE {heartbeat} (id integer PRIMARY KEY, ts timestamptz)",
        *(
            f"INSERT INTO {heartbeat} VALUES (1, now()) ON CONFLICT (id) DO UPDATE SET ts = EXCLUDED.ts"
            for _ in range(3)
        ),
    )
    signals = (
        f"CREATE TABLE {signal} (id varchar(42) PRIMARY KEY, type varchar(32) NOT NULL, data varchar(2048))",
        f"INSERT INTO {signal} VALUES ('a', 'execute-snapshot', '{{\"data-collections\": [\"{table.path}\"]}}')",
        f"DELETE FROM {signal}",
    )
    others = (
        "CREATE PUBLICATION dbz_publication FOR ALL TABLES",
        "SELECT pg_create_logical_replication_slot('debezium', 'pgoutput')",
        "SELECT count(*) FROM pg_logical_slot_get_binary_changes('debezium', NULL, 5, 'proto_version', '1', "
        "'publication_names', 'dbz_publication')", "SELECT pg_drop_replication_slot('debezium')",
        "DROP PUBLICATION dbz_publication",
    )  # fmt: skip
    said = (("pglogical", "heartbeat"), ("debezium-signal", "{}"), ("wal2json", "x"), ("pgl_ddl", "DROP TABLE x"))
    emits = tuple(
        f"SELECT pg_logical_emit_message({dice.choice(('true', 'false'))}, '{prefix}', '{content}')"
        for prefix, content in said
    )  # fmt: skip
    new = (heartbeat.partition(".")[2], signal.partition(".")[2])
    told = Step(
        do="source",
        sql=dice.choice((beats, signals)),
        kind="other followers",
        names=new,
        by_hand=(beats[0], signals[0]),
    )
    middle = (
        *others[:2],
        table.change(dice),
        *emits[:2],
        table.insert(dice, 1),
        others[2],
        table.change(dice),
        *others[3:],
        *emits[2:],
    )
    odd = Step(do="source", sql=middle, kind="other followers", options={"superuser": True})
    return dice.choice(
        ([told], [odd], [told, odd], [told, Step(do="run"), Step(do="source", sql=(*beats[1:], *signals[1:]))])
    )


LOADS: Final[dict[str, Callable[[random.Random, Sequence[Table]], list[Step]]]] = {
    "reloaded": reloaded, "upserts": upserts, "savepoints": savepoints, "two-phase": prepared, "row security": secured,
    "dump restored": restored_dump, "sequences": sequences, "other followers": other_followers,
}  # fmt: skip
