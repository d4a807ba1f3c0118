"""Frozen dataclasses that are made quickly: each call of the queue makes several for every task.

The `__init__` of a frozen dataclass has the class asked for each field, since the class refuses to be written. What is
made here has the same signatures: an `__init__` that sets the slots takes half the time; a function that fills an open
twin of the class, which has the same slots and refuses nothing, and only then gives it its class, takes a fifth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, ParamSpec, TypeVar

_Value = TypeVar("_Value")
_Fields = ParamSpec("_Fields")


def quickly_made(cls: type[_Value]) -> type[_Value]:
    """For a frozen dataclass with slots whose fields are given by name, with plain defaults and no `__post_init__`."""
    plain: Any = cls
    names = _names(cls)
    scope: dict[str, Any] = {f"set_{name}": getattr(cls, name).__set__ for name in names}
    lines = [f"def __init__(self, *, {', '.join(names)}):", *(f"    set_{name}(self, {name})" for name in names)]
    quick = _compiled("__init__", lines, scope)
    for attribute in ("__annotations__", "__kwdefaults__", "__module__", "__qualname__"):
        setattr(quick, attribute, getattr(plain.__init__, attribute))
    plain.__init__ = quick
    return cls


def maker_of(cls: Callable[_Fields, _Value]) -> Callable[_Fields, _Value]:
    """A constructor of such values for places that make many of them."""
    names = _names(cls)
    lines = [f"def make(*, {', '.join(names)}):", *_filled({name: name for name in names})]
    make: Callable[_Fields, _Value] = _compiled("make", lines, _scope(cls))
    defaults: Any = cls
    make.__kwdefaults__ = defaults.__init__.__kwdefaults__
    return make


def replacing(cls: type[_Value], *replaced: str) -> Callable[..., _Value]:
    """As `dataclasses.replace(value, …)` for these fields, all of which are given, by name; takes a tenth."""
    names = _names(cls)
    lines = [
        f"def replace(_old, *, {', '.join(replaced)}):",
        *_filled({name: name if name in replaced else f"_old.{name}" for name in names}),
    ]
    replace: Callable[..., _Value] = _compiled("replace", lines, _scope(cls))
    return replace


def _names(cls: Any) -> list[str]:
    return [one.name for one in fields(cls)]


def _scope(cls: Any) -> dict[str, Any]:
    return {"_new": object.__new__, "_Open": type("Open", (), {"__slots__": cls.__slots__}), "_Value": cls}


def _filled(contents: dict[str, str]) -> list[str]:
    """`contents`: what each field is set to. Our own names begin with what no field's does."""
    sets = [f"    _made.{name} = {content}" for name, content in contents.items()]
    return ["    _made = _new(_Open)", *sets, "    _made.__class__ = _Value", "    return _made"]


def _compiled(name: str, lines: list[str], scope: dict[str, Any]) -> Any:
    # As `dataclass` makes its own; there is no text in it but the names of fields.
    exec("\n".join(lines), scope)  # noqa: S102
    return scope[name]
