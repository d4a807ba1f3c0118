"""Transfers between accounts: a history whose every transaction has as many changes, and leaves the sum as it was."""

from __future__ import annotations

from typing import Final

ACCOUNTS: Final = 1000
BALANCE: Final = 100
CHANGES: Final = 10
"""The changes of each transaction but the first: eight updates, two insertions."""
UPDATES: Final = 8
"""Those of them in `account`."""
TABLES: Final = (
    "CREATE TABLE account (id integer PRIMARY KEY, balance bigint NOT NULL)",
    "CREATE TABLE entry (id bigint PRIMARY KEY, account integer NOT NULL, amount bigint NOT NULL)",
    "CREATE SEQUENCE entry_id",
    f"""
    CREATE PROCEDURE transfer(transactions integer) LANGUAGE plpgsql AS $$
    DECLARE giver integer; taker integer; amount bigint;
    BEGIN
        FOR number IN 1..transactions LOOP
            FOR part IN 1..4 LOOP
                giver := 1 + floor(random() * {ACCOUNTS});
                taker := 1 + floor(random() * {ACCOUNTS});
                amount := 1 + floor(random() * 50);
                UPDATE account SET balance = balance - amount WHERE id = giver;
                UPDATE account SET balance = balance + amount WHERE id = taker;
            END LOOP;
            INSERT INTO entry VALUES (nextval('entry_id'), giver, -amount), (nextval('entry_id'), taker, amount);
            COMMIT;
        END LOOP;
    END $$
    """,
)
FIRST: Final = f"INSERT INTO account SELECT i, {BALANCE} FROM generate_series(1, {ACCOUNTS}) i"
TOTAL: Final = ACCOUNTS * BALANCE
