"""The tables and types that DDL is about, where it is about nothing else: `concerned`.

The text is read by rules that leave no doubt, and of the statements those are known that migrations send of a table or
an enum. All else, be it valid SQL, is about anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

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
_TYPE: Final = rf"(?P<type>{_NAME}(?: \. {_NAME})?)"
_OTHER: Final = rf"{_NAME}(?: \. {_NAME})?"
_STORED: Final = rf"(?: using {_NAME})?(?: with \[\])?(?: tablespace {_NAME})?"
_DIVIDED: Final = r"(?: partition by (?:range|list|hash) \[\])?"
_TEXT: Final = "(?:''|null)"
_ADDS_LABEL: Final = re.compile(rf"alter type {_TYPE} add value (?:if not exists )?''(?: (?:before|after) '')?")
_STATEMENTS: Final = tuple(
    re.compile(one)
    for one in (
        rf"create table (?:if not exists )?{_TABLE} \[\]{_DIVIDED}{_STORED}",
        rf"create table (?:if not exists )?{_OTHER} partition of {_TABLE}(?: \[\])?"
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
        rf"create type {_TYPE} as enum \[\]",
        _ADDS_LABEL,
        rf"drop type (?:if exists )?{_TYPE}(?: restrict)?",
        rf"comment on type {_TYPE} is {_TEXT}",
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
_DROPS: Final = re.compile(
    rf"(?:drop (?:index|statistics) (?:if exists )?{_OTHER}"
    rf"|drop (?:function|procedure) (?:if exists )?{_OTHER}(?: \[\])?"
    rf"|drop (?:trigger|policy|rule) (?:if exists )?{_NAME} on {_OTHER}"
    rf"|alter table (?:if exists )?(?:only )?{_OTHER} drop constraint (?:if exists )?{_NAME})(?: restrict)?"
)
_TEMPORARY: Final = "pg_temp"
_MOST_BYTES: Final = 63
"""The length of a name: the server cuts off what is more."""


class Kind(StrEnum):
    """The kind of thing that DDL is about."""

    TABLE = "table"
    TYPE = "type"


class Concerned(NamedTuple):
    """A table or a type by its name."""

    kind: Kind
    name: Name


def concerned(text: str) -> frozenset[Concerned]:
    """Each table and type that the statements of a sent text are about; none where they may be about something else, or
    where the names may have several schemas.
    """
    words, names, schema = _words(text)
    found = {_concerned(one, names, schema) for one in _statements(words)}
    return frozenset(one for one in found if one) if None not in found else frozenset()


def is_drop_without_rows(text: str) -> bool:
    """True of a sent text that does nothing but drop one thing, which has no rows of its own."""
    return _is_only(_DROPS, text)


def is_new_label(text: str) -> bool:
    """True of a sent text that does nothing but give an enum one more label."""
    return _is_only(_ADDS_LABEL, text)


def _is_only(pattern: re.Pattern[str], text: str) -> bool:
    words, _, _ = _words(text)
    statements = [*_statements(words)]
    return len(statements) == 1 and pattern.fullmatch(statements[0]) is not None


def _words(text: str) -> tuple[str, list[str], str | None]:
    """As `_read`, with the schema of a name without."""
    settings = SETTINGS.match(text)
    before = settings[0] if settings else ""
    if "standard_conforming_strings" in before:
        return "", [], None
    return *_read(text[len(before) :]), _only_schema(before)


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


def _concerned(statement: str, names: Sequence[str], schema: str | None) -> Concerned | None:
    """The one thing that a statement is about. `schema`: that of a name without."""
    found = next((one for pattern in _STATEMENTS if (one := pattern.fullmatch(statement))), None)
    if found is None or "(" in statement or ")" in statement:
        return None
    parts = found.groupdict()
    actions = parts.get("actions")
    if actions and not all(_ACTION.fullmatch(one) for one in actions.split(" , ")):
        return None
    kind = Kind.TABLE if "table" in parts else Kind.TYPE
    words = [names[int(one[1:-1])] if one.startswith('"') else one for one in parts[kind].split(" . ")]
    if any(len(word.encode()) > _MOST_BYTES for word in words):
        return None
    if len(words) == 1:
        return None if schema is None else Concerned(kind, (schema, words[0]))
    return None if words[0] == _TEMPORARY else Concerned(kind, (words[0], words[1]))


def _only_schema(settings: str) -> str | None:
    """The schema of a search path that has one, in which each name without a schema is."""
    path = PATH.match(settings)
    schemas = [] if path is None else schemas_of(path["path"])
    return schemas[0] if len(schemas) == 1 and schemas[0] not in (_TEMPORARY, "pg_catalog") else None
