"""The text that `parallel_apply.send_ddl` sends: settings of its session, in the words of `ddl_capture.sql`, and behind
them the statement as its sender wrote it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

PATH: Final = re.compile(r"""SET LOCAL search_path = (?P<path>(?:"(?:[^"]|"")+"(?:, )?)+); """)
"""The search path that its names mean tables of."""
SETTINGS: Final = re.compile(rf"""(?:{PATH.pattern})?(?:SET LOCAL \w+ = '(?:[^']|'')*'; )*""")
"""All settings, none at all included."""
_SCHEMA: Final = re.compile(r'"((?:[^"]|"")+)"')
_STRING: Final = r"""(?<![\w$])[eE]'(?:[^'\\]|\\.|'')*'|'[^']*'|"[^"]*\""""
_PARTS: Final = re.compile(rf"""--[^\n]*|/\*|{_STRING}|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$|[^-/'";$eE]+|.""", re.DOTALL)
"""Where comments begin or are, strings, quoted names, and what stands between."""
_CODE_PARTS: Final = re.compile(rf"""--[^\n]*|/\*|{_STRING}|[^-/'";eE]+|.""", re.DOTALL)
"""The same of a text in which statements stand between dollars."""
_COMMENT_ENDS: Final = re.compile(r"/\*|\*/")
COMPUTES: Final = re.compile(r"\btype\b.*\busing\b", re.IGNORECASE | re.DOTALL)
"""Words of a statement that may give rows other values, by others of theirs."""
_RETYPES: Final = re.compile(r"\balter\b.*\btype\b", re.IGNORECASE | re.DOTALL)
_GENERATES: Final = re.compile(r"\bset\s+expression\b", re.IGNORECASE)
_QUOTES: Final = str.maketrans("", "", "'\"")
"""Leaves them out: what stands in a block's text has more of them."""
_CODE: Final = re.compile(r"\b(?:do|function|procedure)\b", re.IGNORECASE)
_SHOWN_LETTERS: Final = 200


def written(text: str) -> str:
    """The statement as its sender wrote it."""
    found = SETTINGS.match(text)
    return text[found.end() if found else 0 :]


def schemas_of(path: str) -> list[str]:
    """The schemas of a search path, as `PATH` has it."""
    return [name.replace('""', '"') for name in _SCHEMA.findall(path)]


def statements(text: str) -> Iterator[str]:
    """The statements of a text, those of its blocks and functions, too: what stands between semicolons that no string,
    quoted name or comment has.
    """
    found, plain = "", written(text)
    for part in _parts(plain, _CODE_PARTS if _CODE.search(plain) else _PARTS):
        if part == ";":
            yield found
            found = ""
        else:
            found += " " if part.startswith(("--", "/*")) else part
    yield found


def _parts(text: str, pattern: re.Pattern[str]) -> Iterator[str]:
    """The text's parts by a pattern. Comments hold comments."""
    begin = 0
    while (found := pattern.match(text, begin)) is not None:
        end = _end_of_comment(text, begin) if found[0] == "/*" else found.end()
        yield text[begin:end]
        begin = end


def _end_of_comment(text: str, begin: int) -> int:
    depth = 0
    for found in _COMMENT_ENDS.finditer(text, begin):
        depth += 1 if found[0] == "/*" else -1
        if not depth:
            return found.end()
    return len(text)


def computes(statement: str) -> bool:
    """True if a statement may give rows other values, by others of theirs."""
    return COMPUTES.search(statement) is not None


def retypes(statement: str) -> bool:
    """True if a statement may give a column another type."""
    return _RETYPES.search(statement) is not None


def generates(statement: str) -> bool:
    """The same of a column that is generated: it reads none of its kind."""
    return _GENERATES.search(statement) is not None


def has_word(text: str, name: str) -> bool:
    """True if a text may have a name among its words, however it is quoted."""
    # Of thousands of names few are compiled.
    is_within = unquoted(name).lower() in unquoted(text).lower()
    return is_within and re.search(rf"(?<!\w){pattern_of(name)}(?!\w)", unquoted(text), re.IGNORECASE) is not None


def pattern_of(name: str) -> str:
    """The pattern of a name in a text without quotes."""
    return re.escape(unquoted(name))


def unquoted(text: str) -> str:
    """A text without its quotes."""
    return text.translate(_QUOTES)


def shown_ddl(text: str) -> str:
    """The beginning of what its sender wrote, on one line, for people."""
    return " ".join(written(text).split())[:_SHOWN_LETTERS]


def renames_type(text: str, before: str, now: str) -> bool:
    """True if the text has a statement that gives a type that somebody made another name. Both are as the catalog
    prints them, with a schema; those of arrays are renamed along.
    """
    old, new = (re.escape(name.removesuffix("[]").rpartition(".")[2].strip('"')) for name in (before, now))
    words = rf"\balter\s+type\s+(\S+\.)?{old}\s+rename\s+to\s+{new}(?!\w)"
    are_made = "." in before and "." in now
    return are_made and re.search(words, written(text).replace('"', ""), re.IGNORECASE) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesThen:
    """The names that one of the source's tables, known by its oid, and its columns, by their numbers, had behind a
    statement. `table`: with its schema; None where the source did not tell it. `types`: of the columns that had another
    type, or were computed otherwise, than the last definition before says.
    """

    oid: int
    table: tuple[str, str] | None
    columns: Mapping[int, str]
    types: Mapping[int, str] = field(default_factory=dict)


def text_of_names(names: Iterable[NamesThen]) -> str:
    """The form that the log keeps with a statement."""
    return json.dumps([(one.oid, one.table, [*one.columns.items()], [*one.types.items()]) for one in names])


def names_of_text(text: str) -> tuple[NamesThen, ...]:
    """Inverse of `text_of_names`."""
    return tuple(
        NamesThen(oid=oid, table=None if table is None else tuple(table), columns=dict(columns), types=dict(*types))
        # An earlier version kept no types.
        for oid, table, columns, *types in json.loads(text)
    )
