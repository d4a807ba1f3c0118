"""Tables, changes and what the target says of them: `REFUSALS`, each refused for a reason of its own."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_parallel_apply.postgres.quoting import suffixed

SECRET = "s3cret"
LONG = "t" * 63


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """`follow`: what the hint asks for; None: the SQL after its "Run ", up to a semicolon."""

    source: str = "CREATE TABLE t (id int PRIMARY KEY, v text)"
    target: str = "CREATE TABLE t (id int PRIMARY KEY, v text)"
    changes: tuple[str, ...] = (f"INSERT INTO t VALUES (1, '{SECRET}')",)
    says: tuple[str, ...]
    follow: str | None = None


def label_inside(make: str, type_name: str, value: str) -> Refusal:
    """`make`: what makes the type, of the enum `mood`. `value`: SQL, with a label that the target lacks."""
    table = f"{make}; CREATE TABLE t (id int PRIMARY KEY, v {type_name})"
    return Refusal(
        source=f"CREATE TYPE mood AS ENUM ('ok', 'it''s done'); {table}",
        target=f"CREATE TYPE mood AS ENUM ('ok'); {table}",
        changes=(f"INSERT INTO t VALUES (1, {value})",),
        says=(
            "lacks a label",
            """ALTER TYPE "public"."mood" ADD VALUE 'it''s done' at the target""",
            "under a newer name already",
        ),
    )


REFUSALS = {
    "no partition": Refusal(
        target="CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); "
        "CREATE TABLE t0 PARTITION OF t FOR VALUES FROM (5) TO (9)",
        says=("no partition", "public.t", "create one there"),
    ),
    "no partition by hash": Refusal(
        target="CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY HASH (id); "
        "CREATE TABLE t_part PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
        says=("no partition", "MODULUS 2, REMAINDER 0", '"t_part1"'),
    ),
    "no partition under a name that is taken": Refusal(
        source=f"CREATE TABLE {LONG} (id int PRIMARY KEY)",
        target=f"CREATE TABLE {LONG} (id int PRIMARY KEY) PARTITION BY LIST (id); "
        f"CREATE TYPE {suffixed(LONG, '_default')} AS (n int)",
        changes=(f"INSERT INTO {LONG} VALUES (1)",),
        says=("no partition", '_default1"'),
    ),
    "bounds of a partition": Refusal(
        target="CREATE TABLE root (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); "
        "CREATE TABLE t PARTITION OF root FOR VALUES FROM (5) TO (9)",
        says=("violates partition constraint", "bounds leave this row out"),
    ),
    "a check": Refusal(
        target='CREATE TABLE t (id int PRIMARY KEY, v text CONSTRAINT "Short" CHECK (length(v) < 3))',
        says=("Short", "public.t"),
    ),
    "a check of a partition": Refusal(
        target="CREATE TABLE t (id int PRIMARY KEY, v text CONSTRAINT short CHECK (length(v) < 3)) "
        "PARTITION BY RANGE (id); CREATE TABLE t1 PARTITION OF t DEFAULT",
        says=("short", 'ALTER TABLE "public"."t" DROP'),
    ),
    "a check of a partition alone": Refusal(
        target="CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); "
        'CREATE TABLE "Part 1" PARTITION OF t (CONSTRAINT short CHECK (length(v) < 3)) DEFAULT',
        says=("short", 'ALTER TABLE "public"."Part 1" DROP'),
    ),
    "a check of a parent": Refusal(
        target="CREATE TABLE top (v text CONSTRAINT short CHECK (length(v) < 3)); "
        "CREATE TABLE middle (v text CONSTRAINT other CHECK (true)) INHERITS (top); "
        "CREATE TABLE t (id int PRIMARY KEY, v text) INHERITS (middle)",
        says=("short", 'ALTER TABLE "public"."top" DROP'),
    ),
    "a domain's check": Refusal(
        target="CREATE DOMAIN d AS text CONSTRAINT short CHECK (length(VALUE) < 3); "
        "CREATE TABLE t (id int PRIMARY KEY, v d)",
        says=("short", "domain d"),
    ),
    "a check of the domain below": Refusal(
        target='CREATE DOMAIN "Base" AS text CONSTRAINT short CHECK (length(VALUE) < 3); CREATE DOMAIN d AS "Base"; '
        "CREATE TABLE t (id int PRIMARY KEY, v d)",
        says=("short", 'ALTER DOMAIN "public"."Base" DROP'),
    ),
    "not null": Refusal(
        target="CREATE TABLE t (id int PRIMARY KEY, v text NOT NULL)",
        changes=("INSERT INTO t VALUES (1, NULL)",),
        says=("column v", "public.t"),
    ),
    "a label of an enum": Refusal(
        source="CREATE TYPE mood AS ENUM ('ok', 'it''s done'); CREATE TABLE t (id int PRIMARY KEY, v mood)",
        target="CREATE TYPE mood AS ENUM ('ok'); CREATE TABLE t (id int PRIMARY KEY, v mood)",
        changes=("INSERT INTO t VALUES (1, 'it''s done')",),
        says=("enum mood", "lacks a label", "column v", "ALTER TYPE public.mood ADD VALUE 'it''s done' at the target"),
    ),
    "a label of an enum inside a domain": label_inside("CREATE DOMAIN d AS mood", "d", "'it''s done'"),
    "a label of an enum inside a composite type": label_inside(
        "CREATE TYPE d AS (n int, m mood[])", "d", "(1, '{it''s done}')"
    ),
    "a label of an enum inside a range": label_inside(
        "CREATE TYPE d AS RANGE (subtype = mood)", "d[]", "ARRAY[d('it''s done', NULL)]"
    ),
    "a value that is no label": Refusal(
        target="CREATE TYPE mood AS ENUM ('ok'); CREATE TABLE t (id int PRIMARY KEY, v mood)",
        says=("enum mood", "column v", "another type than the source's"),
    ),
    "a narrower type": Refusal(
        target="CREATE TABLE t (id int PRIMARY KEY, v varchar(3))",
        says=("too long", "narrower", "column v"),
    ),
    "an array of a narrower domain of the same name": Refusal(
        source="CREATE DOMAIN d AS varchar(9); CREATE TABLE t (id int PRIMARY KEY, v d[])",
        target="CREATE DOMAIN d AS varchar(3); CREATE TABLE t (id int PRIMARY KEY, v d[])",
        changes=(f"INSERT INTO t VALUES (1, '{{{SECRET}}}')",),
        says=("too long", "public.d[] takes less", "column v"),
    ),
    "a narrower domain of the same name": Refusal(
        source="CREATE DOMAIN d AS varchar(9); CREATE TABLE t (id int PRIMARY KEY, v d)",
        target="CREATE DOMAIN d AS varchar(3); CREATE TABLE t (id int PRIMARY KEY, v d)",
        says=("too long", "narrower", "column v"),
    ),
    "a composite type of the same name": Refusal(
        source="CREATE TYPE d AS (n int, v varchar(9)); CREATE TABLE t (id int PRIMARY KEY, v d)",
        target="CREATE TYPE d AS (n int, v varchar(3)); CREATE TABLE t (id int PRIMARY KEY, v d)",
        changes=(f"INSERT INTO t VALUES (1, (7, '{SECRET}'))",),
        says=("too long", "public.d takes less", "column v"),
    ),
    "another type": Refusal(
        target="CREATE TABLE t (id int PRIMARY KEY, v int)",
        says=("type integer", "another type", "column v"),
    ),
    "another type with a default": Refusal(
        source="CREATE TABLE t (id int PRIMARY KEY, v timestamptz)",
        target="CREATE TABLE t (id int PRIMARY KEY, v int DEFAULT 7)",
        changes=("INSERT INTO t VALUES (1, 'infinity')",),
        says=("type integer", "another type", "column v", "DROP DEFAULT"),
    ),
    "a unique index": Refusal(
        target="CREATE TABLE t (id int PRIMARY KEY, v text UNIQUE)",
        changes=(f"INSERT INTO t VALUES (1, '{SECRET}'), (2, '{SECRET}')",),
        says=("t_v_key", "(v)", 'run ALTER TABLE "public"."t" DROP CONSTRAINT "t_v_key" at the target'),
        follow="ALTER TABLE t DROP CONSTRAINT t_v_key",
    ),
    "a unique index alone": Refusal(
        target='CREATE TABLE t (id int PRIMARY KEY, v text); CREATE UNIQUE INDEX "T v" ON t (v)',
        changes=(f"INSERT INTO t VALUES (1, '{SECRET}'), (2, '{SECRET}')",),
        says=("T v", 'run DROP INDEX "public"."T v" at the target'),
        follow='DROP INDEX "public"."T v"',
    ),
    "an exclusion": Refusal(
        source="CREATE TABLE t (id int PRIMARY KEY, v int4range)",
        target="CREATE TABLE t (id int PRIMARY KEY, v int4range, CONSTRAINT apart EXCLUDE USING gist (v WITH &&))",
        changes=("INSERT INTO t VALUES (1, '[7070,7090)'), (2, '[7080,7099)')",),
        says=("apart", 'run ALTER TABLE "public"."t" DROP CONSTRAINT "apart" at the target'),
        follow="ALTER TABLE t DROP CONSTRAINT apart",
    ),
    "a trigger that raises": Refusal(
        target="CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN RAISE 'never' USING DETAIL = NEW::text; END$$; "
        "CREATE TABLE t (id int PRIMARY KEY, v text); "
        "CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION no(); ALTER TABLE t ENABLE ALWAYS TRIGGER g",
        says=("never", "function no()", "the trigger g of public.t", "table public.t"),
    ),
    "a trigger of one partition, whose function calls another": Refusal(
        target="CREATE FUNCTION no() RETURNS void LANGUAGE plpgsql AS $$BEGIN RAISE 'never'; END$$; "
        'CREATE FUNCTION "No! no"() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM no(); END$$; '
        "CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); "
        'CREATE TABLE "Part 1" PARTITION OF t DEFAULT; CREATE TABLE other (id int); '
        'CREATE TRIGGER g AFTER INSERT ON "Part 1" FOR EACH ROW EXECUTE FUNCTION "No! no"(); '
        'CREATE TRIGGER g AFTER INSERT ON other FOR EACH ROW EXECUTE FUNCTION "No! no"(); '
        'ALTER TABLE "Part 1" ENABLE REPLICA TRIGGER g; ALTER TABLE other ENABLE REPLICA TRIGGER g',
        says=("never", "function no()", 'ALTER TABLE public."Part 1" ENABLE TRIGGER "g" at the target'),
    ),
    "a trigger that calls itself": Refusal(
        target="CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN UPDATE t SET v = NEW.v; RETURN NULL; END$$; CREATE TABLE t (id int PRIMARY KEY, v text); "
        "CREATE TRIGGER g AFTER UPDATE OR INSERT ON t FOR EACH ROW EXECUTE FUNCTION again(); "
        "ALTER TABLE t ENABLE ALWAYS TRIGGER g",
        says=("stack depth", "function again()", "the trigger g of public.t"),
    ),
    "a domain's not null": Refusal(
        target="CREATE DOMAIN d AS text NOT NULL; CREATE TABLE t (id int PRIMARY KEY, v d)",
        changes=("INSERT INTO t VALUES (1, NULL)",),
        says=("domain d", "public.t"),
    ),
    "an index of an expression": Refusal(
        target="CREATE TABLE t (id int PRIMARY KEY, v text); CREATE INDEX odd ON t ((substr(v, 1)::int))",
        says=("the index odd", "public.t"),
    ),
    "one of several expressions": Refusal(
        target="CREATE TABLE t (id int PRIMARY KEY, v text, a int GENERATED ALWAYS AS (length(v)) STORED, "
        "CHECK (length(v) < 99)); CREATE INDEX odd ON t ((1 / (length(v) - 6)))",
        says=("fails: the index odd. Run DROP INDEX",),
    ),
    "one of several expressions, which reads a text": Refusal(
        target="CREATE TABLE t (id int PRIMARY KEY, v text, a int GENERATED ALWAYS AS (length(v)) STORED, "
        "CHECK (length(v) < 99)); CREATE INDEX odd ON t ((substr(v, 1)::int))",
        says=("fails: the index odd. Run DROP INDEX",),
    ),
    "a computed column of its own": Refusal(
        target="CREATE TABLE t (id int PRIMARY KEY, v text, n smallint GENERATED ALWAYS AS (length(v) * 9999) STORED)",
        says=("the column n", "public.t"),
    ),
    "an index without room": Refusal(
        target="CREATE TABLE t (id int PRIMARY KEY, v text); CREATE INDEX odd ON t (v)",
        changes=("INSERT INTO t SELECT 1, string_agg(md5(n::text), '') FROM generate_series(1, 3000) n",),
        says=("too large for an index", "odd"),
    ),
    "a function that finds no table": Refusal(
        target="CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN INSERT INTO kept VALUES (NEW.v); RETURN NEW; END$$; "
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TRIGGER g AFTER INSERT ON t FOR EACH ROW "
        "EXECUTE FUNCTION keep(); ALTER TABLE t ENABLE ALWAYS TRIGGER g",
        says=("function keep()", "the trigger g of public.t"),
    ),
    "an event trigger": Refusal(
        target="CREATE FUNCTION no() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'never'; END$$; "
        'CREATE TABLE t (id int PRIMARY KEY, v text); CREATE EVENT TRIGGER "No!" ON ddl_command_start '
        "WHEN TAG IN ('CREATE TABLE AS') EXECUTE FUNCTION no()",
        changes=("INSERT INTO t VALUES (1, '7'), (2, '8')", "DELETE FROM t WHERE id = 1"),
        says=("never", "event trigger No!"),
        follow='ALTER EVENT TRIGGER "No!" DISABLE',
    ),
    "a partition that is referred to": Refusal(
        target="CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); "
        'CREATE TABLE "Part 1" PARTITION OF t DEFAULT; CREATE SCHEMA beside; '
        'CREATE TABLE beside.c (t int CONSTRAINT "To t" REFERENCES "Part 1")',
        changes=(f"INSERT INTO t VALUES (1, '{SECRET}')", "TRUNCATE t", f"INSERT INTO t VALUES (2, '{SECRET}')"),
        says=("TRUNCATE", 'beside.c refers to "Part 1"', "To t", "public.t"),
    ),
    "a truncated parent": Refusal(
        source="CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE c (id int PRIMARY KEY, t int)",
        target="CREATE TABLE t (id int PRIMARY KEY, v text); "
        'CREATE TABLE c (id int PRIMARY KEY, t int CONSTRAINT "To t" REFERENCES t)',
        changes=(f"INSERT INTO t VALUES (1, '{SECRET}')", "TRUNCATE t", f"INSERT INTO t VALUES (2, '{SECRET}')"),
        says=("TRUNCATE", "c refers to t", "To t"),
    ),
}
