"""The tables that DDL is about, where it is about nothing else: `concerned_tables`.

The text is read by rules that leave no doubt, and of the statements those are known that migrations send of a table.
All else, be it valid SQL, is about anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from airflow_parallel_apply.pipeline.model.sent_ddl import PATH, SETTINGS, schemas_of
from airflow_parallel_apply.pipeline.target.postgres.catalog.table_names import Name

_TOKEN: Final = re.compile(
    r"""(?P<none>[ \t\n\r\f\v]+|--[^\n\r]*|/\*(?:(?!/\*|\*/).)*\*/)
    |(?P<string>[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|\$(?P<tag>(?:[A-Za-z_][A-Za-z0-9_]*)?)\$.*?\$(?P=tag)\$)
    |(?P<quoted>"(?:[^"]|"")+")
    |(?P<other>[A-Za-z_][A-Za-z0-9_$]*|[0-9][A-Za-z0-9_.]*|/(?!\*)|[-+*<>=~!@\#%^&|`?.,:;()\[\]])""",
    re.DOTALL | re.VERBOSE,
)
_UNICODE_ESCAPES: Final = re.compile(r"u&['\"]", re.IGNORECASE)
_GROUP: Final = re.compile(r"\( (?:[^()]+ )?\)")
_NAME: Final = r'(?:[a-z_][a-z0-9_$]*|"\d+")'
_TABLE: Final = rf"(?P<table>{_NAME}(?: \. {_NAME})?)"
_STORED: Final = rf"(?: using {_NAME})?(?: with \[\])?(?: tablespace {_NAME})?"
_DIVIDED: Final = r"(?: partition by (?:range|list|hash) \[\])?"
_TEXT: Final = "(?:''|null)"
_STATEMENTS: Final = tuple(
    re.compile(one)
    for one in (
        rf"create table (?:if not exists )?{_TABLE} \[\]{_DIVIDED}{_STORED}",
        rf"create table (?:if not exists )?{_NAME}(?: \. {_NAME})? partition of {_TABLE}(?: \[\])?"
        rf" (?:default|for values (?:in \[\]|from \[\] to \[\]|with \[\])){_DIVIDED}{_STORED}",
        rf"create (?:unique )?index (?:if not exists )?(?:(?!on |concurrently ){_NAME} )?on (?:only )?{_TABLE}"
        rf"(?: using {_NAME})? \[\](?: .*)?",
        rf"create (?:or replace )?(?:constraint )?trigger {_NAME} (?:(?!on )\S+ )+on {_TABLE} .*",
        rf"(?:create|alter) policy {_NAME} on {_TABLE}(?: .*)?",
        rf"drop (?:trigger|policy) (?:if exists )?{_NAME} on {_TABLE}(?: restrict)?",
        rf"comment on table {_TABLE} is {_TEXT}",
        rf"comment on column {_TABLE} \. {_NAME} is {_TEXT}",
        rf"comment on (?:constraint|trigger|policy) {_NAME} on (?!domain ){_TABLE} is {_TEXT}",
        rf"drop table (?:if exists )?{_TABLE}(?: restrict)?",
        rf"alter table (?:if exists )?(?:only )?{_TABLE} (?P<actions>.+)",
    )
)
"""In the form that `_statements` gives them."""
_ACTION: Final = re.compile(
    r"add .+"
    rf"|drop (?:constraint |column )?(?:if exists )?{_NAME}(?: restrict)?"
    rf"|alter (?:column |constraint )?{_NAME} .+"
    rf"|rename (?:column |constraint )?{_NAME} to {_NAME}"
    rf"|validate constraint {_NAME}"
    r"|(?:enable|disable|force|no force) .+"
    r"|replica identity .+"
    rf"|cluster on {_NAME}|set without cluster"
    rf"|(?:set|reset) \[\]|set tablespace {_NAME}"
    r"|owner to .+"
)
"""Actions of an ALTER TABLE on its table alone: no other name or schema, no other place among tables."""
_TEMPORARY: Final = "pg_temp"
_MOST_BYTES: Final = 63
"""The length of a name: the server cuts off what is more."""


def concerned_tables(text: str) -> frozenset[Name] | None:
    """Schema and name of each table that the statements of a sent text are about; None where they may be about
    something else, or where the names may mean tables of several schemas.
    """
    settings = SETTINGS.match(text)
    before = settings[0] if settings else ""
    if "standard_conforming_strings" in before:
        return None
    words, names = _read(text[len(before) :])
    found = {_table(one, names, _only_schema(before)) for one in _statements(words)}
    return frozenset(one for one in found if one) if found and None not in found else None


def _read(text: str) -> tuple[str, list[str]]:
    """The text as its tokens between spaces, and its quoted names, which stand there as their places in quotes. Words
    are in small letters; strings are empty. No tokens where a server may find other ones.
    """
    tokens: list[str] = []
    names: list[str] = []
    strings: list[str] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            return "", names
        at = found.end()
        if found["string"]:
            strings.append(found["string"])
            tokens.append("''")
        elif found["quoted"]:
            tokens.append(f'"{len(names)}"')
            names.append(found["quoted"][1:-1].replace('""', '"'))
        elif found["other"]:
            tokens.append(found["other"].lower())
    has_escapes = any(one[0] in "eE" for one in strings)
    if _UNICODE_ESCAPES.search(text) or (has_escapes and any(one[0] == "'" and "\\" in one for one in strings)):
        # What follows a string with escapes on the next line has such, too.
        return "", names
    return " ".join(tokens), names


def _statements(words: str) -> Iterator[str]:
    """Each without what stands in parentheses, which square ones stand for."""
    before = ""
    while words != before:
        before, words = words, _GROUP.sub("[]", words)
    yield from (one for part in f"{words} ".split("; ") if (one := part.strip()))


def _table(statement: str, names: Sequence[str], schema: str | None) -> Name | None:
    """Schema and name of the one table that a statement is about. `schema`: that of a name without."""
    found = next((one for pattern in _STATEMENTS if (one := pattern.fullmatch(statement))), None)
    if found is None or "(" in statement or ")" in statement:
        return None
    actions = found.groupdict().get("actions")
    if actions and not all(_ACTION.fullmatch(one) for one in actions.split(" , ")):
        return None
    parts = [names[int(one[1:-1])] if one.startswith('"') else one for one in found["table"].split(" . ")]
    if any(len(part.encode()) > _MOST_BYTES for part in parts):
        return None
    if len(parts) == 1:
        return None if schema is None else (schema, parts[0])
    return None if parts[0] == _TEMPORARY else (parts[0], parts[1])


def _only_schema(settings: str) -> str | None:
    """The schema of a search path that has one, in which each name without a schema is."""
    path = PATH.match(settings)
    schemas = [] if path is None else schemas_of(path["path"])
    return schemas[0] if len(schemas) == 1 and schemas[0] not in (_TEMPORARY, "pg_catalog") else None
