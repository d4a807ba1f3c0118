"""Shard expressions: a few functions over a row's columns that mean the same at the source, in Arrow and in Spark.

::

    tenant_id                       a column; "Tenant" in double quotes where it is not lower case
    account_id % 16                 remainder of an integer column, with the sign of the column
    left(region, 2)                 the first characters
    split_part(host, '.', 1)        the part with this number, from 1, between separators
    region || '/' || left(city, 1)  one behind the other; NULL where one of them is

The result is text: the canonical text of its column, so that numeric 1.0 and 1.00 are one shard. NULL and the empty
text are no shard. No other function is offered: upper and lower, say, differ between libraries for some letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from airflow_parallel_apply.pipeline.errors import ConfigurationError

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<name>[^\W\d][\w$]*)|"(?P<quoted>(?:[^"]|"")+)"|'(?P<text>(?:[^']|'')*)'"""
    r"""|(?P<number>\d+)|(?P<sign>\|\||[%(),]))"""
)


@dataclass(frozen=True, slots=True)
class ColumnText:
    """A column's canonical text."""

    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A text in single quotes."""

    text: str


@dataclass(frozen=True, slots=True)
class Remainder:
    """`column % divisor` of an integer column."""

    column: ColumnText
    divisor: int


@dataclass(frozen=True, slots=True)
class Left:
    """The first `count` characters (code points)."""

    of: Expression
    count: int


@dataclass(frozen=True, slots=True)
class SplitPart:
    """The part `number`, from 1; empty behind the last."""

    of: Expression
    separator: str
    number: int


@dataclass(frozen=True, slots=True)
class Concatenation:
    """Texts one behind the other."""

    parts: tuple[Expression, ...]


Expression = ColumnText | Literal | Remainder | Left | SplitPart | Concatenation


def columns_of(expression: Expression) -> Iterator[str]:
    """Names of the columns it reads, as often as it does."""
    match expression:
        case ColumnText(name=name):
            yield name
        case Remainder(column=column):
            yield column.name
        case Left(of=of) | SplitPart(of=of):
            yield from columns_of(of)
        case Concatenation(parts=parts):
            for part in parts:
                yield from columns_of(part)
        case Literal():
            pass


def remainder_columns(expression: Expression) -> Iterator[str]:
    """Names of the columns that must be integers."""
    match expression:
        case Remainder(column=column):
            yield column.name
        case Left(of=of) | SplitPart(of=of):
            yield from remainder_columns(of)
        case Concatenation(parts=parts):
            for part in parts:
                yield from remainder_columns(part)
        case _:
            pass


@lru_cache
def parse(text: str) -> Expression:
    """Read an expression. Errors: `ConfigurationError`, which shows where it stops making sense."""
    return _Parser(text).whole()


class _Parser:
    """Recursive descent over the tokens."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._tokens: list[tuple[str, str, int]] = []
        place = 0
        while text[place:].strip():
            found = _TOKEN.match(text, place)
            if found is None:
                raise self._error(place)
            kind = str(found.lastgroup)
            self._tokens.append((kind, found[kind], place))
            place = found.end()

    def whole(self) -> Expression:
        expression = self._concatenation()
        if self._at < len(self._tokens) or not any(True for _ in columns_of(expression)):
            raise self._error(self._place())
        return expression

    def _concatenation(self) -> Expression:
        parts = [self._term()]
        while self._takes("sign", "||"):
            parts.append(self._term())
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def _term(self) -> Expression:
        place = self._place()
        value = self._primary()
        if not self._takes("sign", "%"):
            return value
        if not isinstance(value, ColumnText):
            raise self._error(place)
        return Remainder(value, self._number())

    def _primary(self) -> Expression:
        kind, word = self._next()
        match kind:
            case "text":
                return Literal(word.replace("''", "'"))
            case "quoted":
                return ColumnText(word.replace('""', '"'))
            case "name" if not self._takes("sign", "("):
                return ColumnText(word.lower())
            case "name" if word.lower() == "left":
                of = self._concatenation()
                self._expect(",")
                count = self._number()
                self._expect(")")
                return Left(of, count)
            case "name" if word.lower() == "split_part":
                of = self._concatenation()
                self._expect(",")
                kind, separator = self._next()
                if kind != "text" or not separator:
                    raise self._error(self._place(-1))
                self._expect(",")
                number = self._number()
                self._expect(")")
                return SplitPart(of, separator.replace("''", "'"), number)
            case "sign" if word == "(":
                inner = self._concatenation()
                self._expect(")")
                return inner
        raise self._error(self._place(-1))

    def _number(self) -> int:
        kind, word = self._next()
        if kind != "number" or not 1 <= int(word) < 2**31:
            raise self._error(self._place(-1))
        return int(word)

    def _next(self) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise self._error(len(self._text))
        self._at += 1
        kind, word, _ = self._tokens[self._at - 1]
        return kind, word

    def _takes(self, kind: str, word: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at][:2] == (kind, word):
            self._at += 1
            return True
        return False

    def _expect(self, sign: str) -> None:
        if not self._takes("sign", sign):
            raise self._error(self._place())

    def _place(self, offset: int = 0) -> int:
        at = self._at + offset
        return self._tokens[at][2] if 0 <= at < len(self._tokens) else len(self._text)

    def _error(self, place: int) -> ConfigurationError:
        rest = self._text[place:].strip()
        where = f"at {rest!r}" if rest else "at its end"
        return ConfigurationError(
            f"parameter shard_by: {self._text!r} is not usable, {where}",
            hint="An expression is made of columns, column % n, left(column, n), split_part(column, 'separator', n), "
            "'text' and ||.",
        )
