"""Values of every awkward type, as SQL literals; those of a type that can be a key are distinct under its equality."""

from __future__ import annotations

import random
from typing import Final

LONG: Final = "(SELECT string_agg(md5(i || {}), '') FROM generate_series(1, 200) i)"
"""Stored out of line, since it does not compress: an update that leaves it alone does not send it."""

VALUES: Final[dict[str, tuple[str, ...]]] = {
    "integer": ("0", "-2147483648", "2147483647", "7", "-1"),
    "bigint": ("0", "-9223372036854775808", "9223372036854775807", "42"),
    "smallint": ("-32768", "32767", "3"),
    "numeric": ("0", "1.50", "-0.000001", "'NaN'", "'Infinity'", "'-Infinity'", "1e40", "1234567890123456789.5", "2.0"),
    "numeric(20,5)": ("0.00001", "-99999.5", "123456789012345.12345"),
    "double precision": ("0", "'NaN'", "'Infinity'", "'-Infinity'", "0.1", "1e-300", "1.7976931348623157e308",
                         "-2.5", "0.30000000000000004"),
    "real": ("0", "'NaN'", "1e-40", "0.1", "3.4028235e38", "0.123456789"),
    "text": ("''", "'a'", "'A'", "'ä'", "E'tab\\t\\n\\\\N'", "E'\\u0001'", "' a'", "'a '", "'\\N'", "repeat('y', 900)"),
    "varchar(12)": ("''", "'x'", "'twelve chars'", "'Ωmega'"),
    "char(5)": ("''", "'a'", "'ab'", "'five5'"),
    "bytea": ("''", "'\\x00'", "'\\x00ff'", "'\\x5c4e'"),
    "boolean": ("true", "false"),
    "date": ("'2024-02-29'", "'infinity'", "'-infinity'", "'0044-03-15 BC'", "'5874897-12-31'", "'1900-01-01'"),
    "timestamp": ("'2024-02-29 12:00:00.000001'", "'infinity'", "'0044-03-15 01:02:03 BC'", "'294276-12-31'"),
    "timestamptz": (
        "'2024-02-29 12:00:00.000001+02'", "'infinity'", "'-infinity'", "'0044-03-15 01:02:03+00 BC'",
        "'294276-12-31 00:00+00'", "'epoch'", "'1999-12-31 23:59:59.999999-11'",
    ),
    "time": ("'00:00'", "'24:00:00'", "'12:34:56.789012'"),
    "timetz": ("'00:00+14'", "'12:34:56.789012-03:30'"),
    "interval": ("'0'", "'-1 year 2 mons -3 days 04:05:06.789'", "'178000000 years'", "'1 day'"),
    "uuid": ("'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"),
    "inet": ("'10.0.0.1'", "'10.0.0.0/8'", "'::1'"),
    "jsonb": ("'{}'", "'{\"a\": [1, null, \"x\"]}'", "'1e3'"),
    "json": ("'{ \"a\" :1,\"a\":2}'", "'[]'"),
    "money": ("0", "-12.34"),
    "bit varying": ("B''", "B'0101'"),
    "integer[]": ("'{}'", "'{1,NULL,3}'", "'[0:1]={5,6}'", "'{{1,2},{3,4}}'"),
    "text[]": ("'{}'", "'{\"a,b\",NULL,\"NULL\",\"\\\\\\\"\"}'"),
    "int4range": ("'empty'", "'[1,5)'", "'(,)'", "'[7,]'"),
    "tstzrange": ("'empty'", "'[2024-01-01,infinity]'"),
    "mood": ("'sad'", "'so, so'"),
    "small": ("1", "9"),
    "pair": ("'(1,x)'", "'(,\"\")'"),
    "bit(3)": ("B'000'", "B'101'"),
    "macaddr": ("'08:00:2b:01:02:03'", "'ff:ff:ff:ff:ff:ff'"),
    "cidr": ("'0.0.0.0/0'", "'10.1.0.0/16'", "'2001:db8::/32'"),
    "oid": ("0", "4294967295"),
    "pg_lsn": ("'0/0'", "'FFFFFFFF/FFFFFFFF'"),
    "name": ("''", "'a b'", "repeat('n', 63)"),
    '"char"': ("''", "'a'", "'\\377'"),
    "tsvector": ("''", "'a:1A b:2'", "'''it''''s'' x'"),
    "int4multirange": ("'{}'", "'{[1,3),[5,)}'"),
    "point": ("'(0.1,-2)'",),
}  # fmt: skip

TYPES: Final = (
    "CREATE TYPE mood AS ENUM ('sad', 'so, so')",
    "CREATE DOMAIN small AS integer CHECK (VALUE < 10)",
    "CREATE TYPE pair AS (n integer, t text)",
)
KEYS: Final = tuple(name for name in VALUES if name not in ("json", "point"))
"""Types with an equality: they can be a key."""
TIMES: Final = ("date", "timestamp", "timestamptz")
"""Keys whose extreme values nobody but PostgreSQL can read, so that they are ordered apart from the others."""


def literal(dice: random.Random, type_name: str, *, nullable: bool = True) -> str:
    """One value; a type that is not listed gets NULL, which is why it has to be nullable."""
    if type_name not in VALUES or (nullable and dice.random() < 0.12):
        return "NULL"
    if type_name == "text" and nullable and dice.random() < 0.15:
        return LONG.format(f"'{dice.randrange(99)}'")
    value = dice.choice(VALUES[type_name])
    # A sign binds less than a cast does.
    return f"{value if not value.startswith('-') else repr(value)}::{type_name}"
