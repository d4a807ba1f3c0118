"""The settings under which a statement that a person runs takes values by the texts that the pipeline compares."""

from __future__ import annotations

from typing import Final

from airflow_parallel_apply.pipeline.target.postgres.catalog.fit import name_of_built_in
from airflow_parallel_apply.postgres.settings import EXACT

_DATES: Final = ("timestamp without time zone", "date")
_SETTINGS: Final = {
    **dict.fromkeys(_DATES, ("datestyle",)),
    "timestamp with time zone": ("datestyle", "timezone"),
    "time with time zone": ("timezone",),
    "interval": ("intervalstyle",),
    **dict.fromkeys(("real", "double precision"), ("extra_float_digits",)),
    "bytea": ("bytea_output",),
    "money": ("lc_monetary",),
}
"""On which the texts of built-in types depend; those of others on none."""
_ALL: Final = tuple(dict.fromkeys(name for names in _SETTINGS.values() for name in names))


def exact_session(*types: str) -> tuple[str, ...]:
    """The SET statements before one that reads or prints values of these types. A type that is not built in may be
    made of any.
    """
    needed: set[str] = set()
    for one in types:
        name = name_of_built_in(one.removesuffix("[]"))
        needed.update(_ALL if name is None else _SETTINGS.get(name, ()))
    return tuple(f"SET {name} = '{EXACT[name]}'" for name in _ALL if name in needed)
