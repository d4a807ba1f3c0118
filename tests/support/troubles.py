"""Troubles that may stand in a run's way: how to make each trouble, and what `check` says of it."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_parallel_apply.pipeline.model.finding import Severity

ROLE = "checked role"

ORIGIN_FUNCTIONS = (
    "pg_replication_origin_create(text)",
    "pg_replication_origin_drop(text)",
    "pg_replication_origin_session_reset()",
    "pg_replication_origin_session_setup(text)",
    "pg_replication_origin_xact_setup(pg_lsn, timestamptz)",
)
"""The functions that only superusers may call, unless the right is granted."""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """The statements that make it (in the order source, target), what is said, and how bad it is."""

    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    says: str
    severity: Severity = Severity.ERROR


WARNING = Severity.WARNING
TROUBLES = {
    "no right to replicate": Trouble(source=(f'ALTER ROLE "{ROLE}" NOREPLICATION',), says="no right to replicate"),
    "no right to publish": Trouble(
        source=("DO $$ BEGIN EXECUTE format('REVOKE CREATE ON DATABASE %I FROM %I', current_database(), "
                f"'{ROLE}'); END $$",),
        says="no right to create a publication",
    ),
    "another owner": Trouble(source=("ALTER TABLE t OWNER TO postgres",), says="does not own"),
    "another owner, no superuser": Trouble(
        source=('DROP ROLE IF EXISTS "some owner"', 'CREATE ROLE "some owner"',
                'GRANT ALL ON SCHEMA public TO "some owner"', 'ALTER TABLE t OWNER TO "some owner"'),
        says="does not own",
    ),
    "no use of a schema": Trouble(
        source=('CREATE SCHEMA "My Shop"', 'CREATE TABLE "My Shop"."Order" (id int PRIMARY KEY)',
                f'ALTER TABLE "My Shop"."Order" OWNER TO "{ROLE}"'),
        target=('CREATE SCHEMA "My Shop"', 'CREATE TABLE "My Shop"."Order" (id int PRIMARY KEY)',
                f'GRANT USAGE ON SCHEMA "My Shop" TO "{ROLE}"',
                f'GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON "My Shop"."Order" TO "{ROLE}"'),
        says="may not use the schema",
    ),
    "no use of a schema at the target": Trouble(
        source=('CREATE SCHEMA "My Shop"', 'CREATE TABLE "My Shop"."Order" (id int PRIMARY KEY)',
                f'ALTER TABLE "My Shop"."Order" OWNER TO "{ROLE}"', f'GRANT USAGE ON SCHEMA "My Shop" TO "{ROLE}"'),
        target=('CREATE SCHEMA "My Shop"', 'CREATE TABLE "My Shop"."Order" (id int PRIMARY KEY)',
                f'GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON "My Shop"."Order" TO "{ROLE}"'),
        says="may not use the schema My Shop",
    ),
    "no right to write messages": Trouble(
        source=("REVOKE EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, text, boolean) FROM PUBLIC",),
        says="may not write logical messages",
        severity=WARNING,
    ),
    "no key at all": Trouble(
        source=("CREATE TABLE k (a int)", f'ALTER TABLE k OWNER TO "{ROLE}"'),
        target=("CREATE TABLE k (a int)", f'GRANT ALL ON k TO "{ROLE}"'),
        says="public.k has no replica identity",
        severity=WARNING,
    ),
    "a unique index that could identify": Trouble(
        source=("CREATE TABLE k (a int NOT NULL UNIQUE)", f'ALTER TABLE k OWNER TO "{ROLE}"'),
        target=("CREATE TABLE k (a int NOT NULL UNIQUE)", f'GRANT ALL ON k TO "{ROLE}"'),
        says="public.k has no replica identity",
        severity=WARNING,
    ),
    "identity nothing": Trouble(
        source=("ALTER TABLE t REPLICA IDENTITY NOTHING",), says="public.t has no replica identity", severity=WARNING
    ),
    "a partition without identity": Trouble(
        source=("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
                "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9)", "ALTER TABLE p1 REPLICA IDENTITY NOTHING",
                f'ALTER TABLE p OWNER TO "{ROLE}"', f'ALTER TABLE p1 OWNER TO "{ROLE}"'),
        target=("CREATE TABLE p (id int PRIMARY KEY)", f'GRANT ALL ON p TO "{ROLE}"'),
        says="public.p1 has no replica identity",
        severity=WARNING,
    ),
    "another owner of a partition": Trouble(
        source=("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
                "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9)", f'ALTER TABLE p OWNER TO "{ROLE}"'),
        target=("CREATE TABLE p (id int PRIMARY KEY)", f'GRANT ALL ON p TO "{ROLE}"'),
        says="does not own the partition public.p1",
        severity=WARNING,
    ),
    "no right to the schema": Trouble(
        target=("DO $$ BEGIN EXECUTE format('REVOKE CREATE ON DATABASE %I FROM %I', current_database(), "
                f"'{ROLE}'); END $$",),
        says="may not create the schema parallel_apply",
    ),
    "somebody else's schema": Trouble(
        target=("CREATE SCHEMA parallel_apply",), says="may not create tables in the schema parallel_apply"
    ),
    "no right to write": Trouble(
        target=(f'REVOKE UPDATE, TRUNCATE ON t FROM "{ROLE}"',), says="no privilege TRUNCATE, UPDATE"
    ),
    "no table": Trouble(
        source=('CREATE TABLE "Odd name" ("Key" bigint PRIMARY KEY, v numeric(10,2), "w""x" text[])',
                f'ALTER TABLE "Odd name" OWNER TO "{ROLE}"'),
        target=(f'ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO "{ROLE}"',),
        says="public.Odd name is missing",
    ),
    "no column": Trouble(target=("ALTER TABLE t DROP COLUMN v",), says="public.t lacks the column v"),
    "a value that nobody has": Trouble(
        target=('ALTER TABLE t ADD COLUMN "Must" int NOT NULL',), says="demands a value for the column Must"
    ),
    "no key there": Trouble(
        target=("ALTER TABLE t DROP CONSTRAINT t_pkey",), says="no unique index over exactly the source's key (id)"
    ),
    "a computed column": Trouble(
        target=("ALTER TABLE t DROP COLUMN v", "ALTER TABLE t ADD COLUMN v text GENERATED ALWAYS AS ('x') STORED"),
        says="computes the column v",
    ),
    "a type that loses": Trouble(
        source=("ALTER TABLE t ADD COLUMN n numeric(10,4)",),
        target=("ALTER TABLE t ADD COLUMN n numeric(10,2)",),
        says="n as numeric(10,2), which keeps less than the source's numeric(10,4)",
    ),
    "a type that refuses": Trouble(
        source=("ALTER TABLE t ADD COLUMN n bigint",),
        target=("ALTER TABLE t ADD COLUMN n int",),
        says="n as integer, which may refuse",
        severity=WARNING,
    ),
    "no right to replication origins": Trouble(
        target=(f'REVOKE EXECUTE ON FUNCTION {", ".join(ORIGIN_FUNCTIONS)} FROM "{ROLE}"',),
        says="commits carry no replication origin",
        severity=WARNING,
    ),
    "row security": Trouble(
        target=("ALTER TABLE t ENABLE ROW LEVEL SECURITY",), says="row security, which hides or refuses"
    ),
    "triggers without the right to be a replica": Trouble(
        target=("CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
                "CREATE TRIGGER loud AFTER INSERT ON t EXECUTE FUNCTION f()"),
        says="(loud), and role",
        severity=WARNING,
    ),
    "a trigger that always fires": Trouble(
        target=("CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
                'CREATE TRIGGER "Loud" AFTER INSERT ON t EXECUTE FUNCTION f()',
                'ALTER TABLE t ENABLE ALWAYS TRIGGER "Loud"',
                f'GRANT SET ON PARAMETER session_replication_role TO "{ROLE}"'),
        says="has the trigger Loud, which acts on applied rows",
        severity=WARNING,
    ),
    "a rule without the right to be a replica": Trouble(
        target=("CREATE RULE quiet AS ON INSERT TO t DO INSTEAD NOTHING",),
        says="(quiet), and role",
        severity=WARNING,
    ),
    "a rule that always acts": Trouble(
        target=('CREATE RULE "Quiet" AS ON INSERT TO t DO INSTEAD NOTHING',
                'ALTER TABLE t ENABLE ALWAYS RULE "Quiet"',
                f'GRANT SET ON PARAMETER session_replication_role TO "{ROLE}"'),
        says="has the rule Quiet, which acts on applied rows",
        severity=WARNING,
    ),
}  # fmt: skip
