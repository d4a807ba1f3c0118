"""The product with a line broken on purpose, in this process, to show that somebody would notice."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any


@contextmanager
def broken(function: Callable[..., Any], line: str, instead: str) -> Iterator[None]:
    """A function or method has other text in place of one that stands in it once. Whoever has it by name has the broken
    one, too. Errors: `AssertionError`, where the text is not there: it was changed, and the entry is to follow it.
    """
    assert isinstance(function, FunctionType)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(line) == 1, f"{function.__qualname__} has {source.count(line)} times: {line}"
    there: dict[str, Any] = {}
    exec("from __future__ import annotations\n" + source.replace(line, instead), function.__globals__, there)  # noqa: S102
    whole, function.__code__ = function.__code__, there[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = whole
