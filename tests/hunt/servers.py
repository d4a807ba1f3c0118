"""Exotic events of servers: crashes, restores, failovers, settings, rights, and what goes from under a run."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from tests.hunt.step import Step
from tests.hunt.tables import Table

WENT_BACK: Final = {"source": ("was restored", "WAL ends", "slot"), "target": ("was restored", "purged")}
"""The words of which a run may use one after a side went back."""
_OTHER_HISTORY: Final = ("older state of itself", "another transaction of seqno")
"""The same of a log."""

_SETTINGS: Final = (
    "datestyle = 'German'", "intervalstyle = 'sql_standard'", "bytea_output = 'escape'", "extra_float_digits = '-5'",
    "timezone = 'Asia/Kolkata'", "array_nulls = off", "standard_conforming_strings = off", "quote_all_identifiers = on",
    "search_path = 'pg_catalog'", "default_transaction_isolation = 'serializable'", "transform_null_equals = on",
    "client_encoding = 'LATIN1'", "synchronous_commit = off", "idle_session_timeout = '300ms'",
    "idle_in_transaction_session_timeout = '300ms'", "transaction_timeout = '5s'", "enable_indexscan = off",
    "enable_hashjoin = off", "enable_sort = off", "jit = on", "row_security = off", "check_function_bodies = off",
    "xmloption = document", "default_toast_compression = 'lz4'", "plan_cache_mode = 'force_generic_plan'",
)  # fmt: skip
"""That somebody gives a database; a session that means exact texts has its own."""


def crash(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    side = dice.choice(("source", "target"))
    return [Step(do="crash", options={"side": side}, kind=f"{side} crashes")]


def restored(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """A directory is copied, the history goes on, and the copy comes back; as a standby that was behind, perhaps. Or a
    source comes back with its log, as from one disk: they fit, and the target alone is ahead.
    """
    side = dice.choice(("source", "source", "target"))
    table = dice.choice(tables)
    names, kind = WENT_BACK[side], f"{side} restored"
    is_promoted = dice.random() < 0.3
    keep_log, lose_log = [], []
    if side == "source" and dice.random() < 0.3:
        kind = "source restored with its log"
        keep_log = [Step(do="keep log", kind=kind)]
        lose_log = [Step(do="lose log", options={"what": "restore", "file": 0}, kind=kind, names=_OTHER_HISTORY)]
    return [
        Step(do="run"),
        Step(do="keep", options={"side": side}, kind=kind),
        *keep_log,
        Step(do="source", sql=tuple(table.change(dice) for _ in range(3))),
        Step(do="run"),
        *lose_log,
        Step(do="restore", options={"side": side, "promoted": is_promoted}, kind=kind, names=names),
        Step(do="source", sql=tuple(table.insert(dice, 2) for _ in range(dice.choice((1, 30))))),
    ]


def restored_in_mid_run(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """The target loses its last commits under a run whose lanes go on."""
    rows = [Step(do="source", sql=tuple(table.change(dice) for table in tables for _ in range(4)))]
    kind = "target restored in mid-run"
    return [
        Step(do="run"),
        *rows,
        Step(do="abandon", options={"units": dice.choice((0, 1, 3))}, kind="run abandoned"),
        Step(do="keep", options={"side": "target"}, kind=kind),
        *(rows if dice.random() < 0.5 else []),
        Step(do="wake", options={"units": dice.choice((1, 4, 1000))}, kind="lane wakes"),
        Step(do="restore", options={"side": "target"}, kind=kind, names=WENT_BACK["target"]),
        *([Step(do="wake", kind="lane wakes")] if dice.random() < 0.8 else []),
        Step(do="lapse", kind="lease lapses"),
    ]


def promoted(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """A standby that has everything takes over: nothing is lost, and nothing has to be done."""
    side = dice.choice(("source", "source", "target"))
    return [Step(do="promote", options={"side": side}, kind=f"{side} failed over")]


def settings(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """Nothing comes of them."""
    some = dice.sample(_SETTINGS, dice.choice((1, 3)))
    sql = tuple(f"ALTER DATABASE hunt SET {one}" for one in some)
    sides = dice.choice((("source",), ("target",), ("source", "target")))
    return [Step(do=side, sql=sql, kind="settings", options={"superuser": True}) for side in sides]


def rights(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """Taken from the target's role; of no effect on a superuser."""
    table = dice.choice(tables)
    right = dice.choice(("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "ALL"))
    take, give = dice.choice(
        (
            (f"ALTER TABLE {table.path} OWNER TO postgres", f"ALTER TABLE {table.path} OWNER TO plain"),
            (f"REVOKE {right} ON {table.path} FROM plain", f"GRANT {right} ON {table.path} TO plain"),
            ("REVOKE USAGE ON SCHEMA public FROM plain, public", "GRANT USAGE ON SCHEMA public TO plain"),
            (f"ALTER TABLE {table.path} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
             f"ALTER TABLE {table.path} DISABLE ROW LEVEL SECURITY"),
        )
    )  # fmt: skip
    names = (table.name, "permission denied", "no right", "row security", "schema public")
    return [Step(do="target", sql=(take,), kind="rights taken", names=names, by_hand=(give,))]


def slot(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """Take away, or advance, what the stream hangs on; perhaps with changes that nobody has read."""
    rows = [Step(do="source", sql=(dice.choice(tables).insert(dice, 2),))] if dice.random() < 0.5 else []
    ours = "FROM pg_replication_slots WHERE slot_name = 'parallel_apply_p'"
    what = dice.choice(
        (
            f"SELECT pg_drop_replication_slot(slot_name) {ours}",
            f"SELECT pg_replication_slot_advance(slot_name, pg_current_wal_lsn()) {ours}",
            "DROP PUBLICATION parallel_apply_p",
            "COMMENT ON PUBLICATION parallel_apply_p IS NULL",
            "ALTER PUBLICATION parallel_apply_p RENAME TO other",
        )
    )
    return [*rows, Step(do="source", sql=(what,), kind="slot or publication lost", names=("slot", "publication"))]


def log_lost(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """The log's directory, or one of its files, goes, is damaged, or comes back from a backup."""
    what = dice.choice(("remove", "remove a file", "damage", "restore"))
    rows = Step(do="source", sql=(dice.choice(tables).insert(dice, 2),))
    names = ("log", "manifest", "segment", "checksum", "missing", "slot")
    lose = Step(do="lose log", options={"what": what, "file": dice.randrange(100)}, kind="log lost", names=names)
    keep = [Step(do="run"), Step(do="keep log", kind="log lost"), rows, Step(do="run")] if what == "restore" else [rows]
    return [*keep, lose, rows]


def dumped(dice: random.Random, tables: Sequence[Table]) -> list[Step]:
    """A database is dumped, dropped and restored from the dump, as it was then: everything in it has another oid."""
    side = dice.choice(("target", "target", "target", "source"))
    kind = f"{side} restored from a dump"
    rows = Step(do="source", sql=tuple(table.change(dice) for table in tables for _ in range(2)))
    since = dice.choice(([], [rows], [rows, Step(do="run")]))
    names = WENT_BACK["target"] if side == "target" else ("slot", "publication")
    return [
        *([Step(do="run")] if dice.random() < 0.8 else []),
        Step(do="dump", options={"side": side}, kind=kind),
        *(since if side == "target" else []),
        Step(do="load", options={"side": side}, kind=kind, names=names),
        rows,
    ]


SERVERS: Final[dict[str, Callable[[random.Random, Sequence[Table]], list[Step]]]] = {
    "crash": crash, "restored": restored, "restored in mid-run": restored_in_mid_run, "promoted": promoted,
    "settings": settings, "rights": rights, "slot lost": slot, "log lost": log_lost,
    "dumped": dumped,
}  # fmt: skip
