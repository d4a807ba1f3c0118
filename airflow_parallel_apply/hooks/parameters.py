"""Pipeline parameters as Airflow brings them, to the one `PipelineConfig`, with errors that name the parameter.

Templates render to text, the trigger form sends JSON, Python passes values: all three mean the same here. An empty
text or None stands for the parameter's default.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

from airflow_parallel_apply.pipeline.config import (
    Consistency,
    DdlPolicy,
    EpochProtocol,
    PipelineConfig,
    Start,
    StoreName,
    TablePatterns,
)
from airflow_parallel_apply.pipeline.errors import ConfigurationError

NAMES: Final = (
    "pipeline",
    "log_url",
    "log_directory",
    "slot",
    "tables",
    "start",
    "create_tables",
    "channels",
    "lanes",
    "partitioner",
    "shard_by",
    "shard_file",
    "store",
    "consistency",
    "epoch_protocol",
    "ddl",
    "epoch_max_changes",
    "error_values",
)
"""The parameters of a pipeline, in the order of the form."""

_DEPENDENT: Final = frozenset({"create_tables", "log_directory", "partitioner", "shard_by", "shard_file"})
"""Parameters whose validity depends on each other, or on `start`."""

Choice = TypeVar("Choice", bound=StrEnum)


def pipeline_config(values: Mapping[str, object]) -> PipelineConfig:
    """Build the configuration from rendered values by `NAMES`.

    Errors: `ConfigurationError`, which names the parameter and what it takes.
    """
    given = {name: value for name, value in values.items() if value is not None and value != ""}
    pipeline = str(given.pop("pipeline", ""))
    log_url = place("log_url", given.pop("log_url", None) or default_log_url(pipeline))
    converted: dict[str, object] = {name: _CONVERT[name](name, value) for name, value in given.items()}
    return PipelineConfig(pipeline=pipeline, log_url=log_url, **converted)  # type: ignore[arg-type]


def check_literals(values: Mapping[str, object]) -> None:
    """Refuse what no rendering could make right, while the DAG is parsed: the whole configuration where nothing of it
    is a template, else each parameter that is none by itself.

    Errors: `ConfigurationError`.
    """
    literals = {name: value for name, value in values.items() if not is_rendered_later(value)}
    if len(literals) == len(values):
        pipeline_config(values)
        return
    for name, value in literals.items():
        if name in _DEPENDENT and value not in (None, ""):
            _CONVERT[name](name, value)
        elif name not in _DEPENDENT:
            pipeline_config({"pipeline": "any", name: value})


def is_rendered_later(value: object) -> bool:
    """True if a value is a template, contains one, or will be returned by another task."""
    if isinstance(value, str):
        return any(mark in value for mark in ("{{", "{%", "{#"))
    if isinstance(value, Mapping):
        return any(map(is_rendered_later, (*value.keys(), *value.values())))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(is_rendered_later, value))
    return not (value is None or isinstance(value, int | float))


def default_log_url(pipeline: str) -> str:
    """A directory of the pipeline under AIRFLOW_HOME: right where all workers share it, as on one machine."""
    home = os.environ.get("AIRFLOW_HOME") or "~/airflow"
    return str(Path(home).expanduser() / "parallel_apply" / pipeline)


def table_patterns(name: str, value: object, *, otherwise: tuple[str, ...] = TablePatterns().include) -> TablePatterns:
    """`{"include": […], "exclude": […]}`, a list or comma-separated text of patterns; a leading `!` excludes.
    `otherwise`: what is included where nothing says it.
    """
    if isinstance(value, str):
        value = _json(name, value) if value.lstrip().startswith(("{", "[")) else value.split(",")
    if isinstance(value, Mapping):
        unknown = sorted(map(str, value.keys() - {"include", "exclude"}))
        if unknown:
            raise _wrong(name, unknown, "the keys include and exclude")
        include, exclude = value.get("include"), value.get("exclude")
        return TablePatterns(
            include=otherwise if include is None else _patterns(name, include),
            exclude=() if exclude is None else _patterns(name, exclude),
        )
    patterns = _patterns(name, value)
    include_only = tuple(pattern for pattern in patterns if not pattern.startswith("!"))
    excluded = tuple(pattern[1:] for pattern in patterns if pattern.startswith("!"))
    return TablePatterns(include=include_only or otherwise, exclude=excluded)


def _patterns(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, Iterable):
        raise _wrong(name, value, "lists of patterns over schema.table, such as public.*")
    patterns = tuple(str(pattern).strip() for pattern in value)
    for pattern in patterns:
        if "." not in pattern:
            raise _wrong(name, pattern, "patterns over schema.table, such as public.*")
    return patterns


def _shard_by(name: str, value: object) -> tuple[tuple[str, str], ...]:
    """An expression for all tables, or `{pattern over schema.table: expression}`, of which the first match counts."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = _json(name, value, takes='JSON such as {"public.*": "tenant_id"}')
    if isinstance(value, str):
        return (("*", value),)
    if not isinstance(value, Mapping):
        raise _wrong(name, value, 'an expression such as tenant_id, or {"public.*": "tenant_id"}')
    _patterns(name, [pattern for pattern in value if pattern != "*"])
    return tuple((str(pattern), str(expression)) for pattern, expression in value.items())


def number(name: str, value: object) -> int:
    """A whole number, as JSON, Python or a rendered template writes it. Errors: `ConfigurationError`."""
    try:
        if isinstance(value, int | str) and not isinstance(value, bool):
            return int(value)
    except ValueError:
        pass
    raise _wrong(name, value, "a whole number")


def place(name: str, value: object) -> str:
    """An absolute path, or an address: tasks have directories of their own for a relative one to begin at."""
    text = str(value)
    if "://" in text or Path(text).is_absolute():
        return text
    raise _wrong(name, text, "an absolute path, the same for every task")


def duration(name: str, value: object) -> timedelta:
    """A duration, which no template renders to. Errors: `ConfigurationError`."""
    if isinstance(value, timedelta):
        return value
    raise _wrong(name, value, "a timedelta, such as timedelta(minutes=5)")


def flag(name: str, value: object) -> bool:
    """Read a flag as JSON, Python or a rendered template writes it."""
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise _wrong(name, value, "true or false")
    return text == "true"


def choice(kind: type[Choice]) -> Callable[[str, object], Choice]:
    """The conversion to one of an enumeration's words. Errors of what it returns: `ConfigurationError`."""

    def convert(name: str, value: object) -> Choice:
        try:
            return kind(str(value))
        except ValueError:
            raise _wrong(name, value, " or ".join(kind)) from None

    return convert


def _json(name: str, text: str, *, takes: str = 'JSON such as {"include": ["public.*"], "exclude": []}') -> object:
    try:
        value: object = json.loads(text)
    except ValueError:
        raise _wrong(name, text, takes) from None
    return value


def _wrong(name: str, value: object, takes: str) -> ConfigurationError:
    return ConfigurationError(f"parameter {name}: {value!r} is not usable", hint=f"{name} takes {takes}.")


_CONVERT: Final[Mapping[str, Callable[[str, object], object]]] = {
    "log_directory": place,
    "slot": lambda _name, value: str(value),
    "tables": table_patterns,
    "start": choice(Start),
    "create_tables": flag,
    "channels": number,
    "lanes": number,
    "partitioner": lambda _name, value: str(value),
    "shard_by": _shard_by,
    "shard_file": place,
    "store": choice(StoreName),
    "consistency": choice(Consistency),
    "epoch_protocol": choice(EpochProtocol),
    "ddl": choice(DdlPolicy),
    "epoch_max_changes": number,
    "error_values": flag,
}
