"""Finds the occupant that a URL's scheme names: one of ours, imported late, or one that was installed beside this
package.

A room that goes by schemes has a table, scheme → `module:name`, and a group of entry points. A distribution brings an
occupant so::

    [project.entry-points."airflow_parallel_apply.sources"]
    mysql = "my_package.source:MySqlConnector"

It has to be installed wherever tasks of the pipeline run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoints, entry_points
from typing import Any, Final

from airflow_parallel_apply.pipeline.errors import ConfigurationError

_TO: Final = "-to-"
_KEPT_PATHS: Final = 4


def installed(group: str) -> EntryPoints:
    """The entry points of a group, as they were when the process first asked."""
    found: EntryPoints = _everything(tuple(sys.path)).select(group=group)
    return found


def pair_of(source: str, target: str) -> str:
    """The name of a pair of schemes, in a room that goes by both ends."""
    return f"{source}{_TO}{target}"


def is_pair_to(pair: str, target: str) -> bool:
    """True if a pair leads to a target of that scheme."""
    return pair.endswith(f"{_TO}{target}")


def not_installed(missing: ModuleNotFoundError, *, extra: str) -> ConfigurationError:
    """The error to raise where an import finds no package of an extra."""
    return ConfigurationError(
        f"{missing.name} is not installed here", hint=f"pip install 'airflow-provider-parallel-apply[{extra}]'"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Schemes:
    """The occupants of one room. `thing`: what one of them is called, for people."""

    thing: str
    group: str
    ours: Mapping[str, str]

    def known(self) -> tuple[str, ...]:
        """The schemes that have an occupant here, ours first."""
        others = {found.name for found in installed(self.group)} - self.ours.keys()
        return (*self.ours, *sorted(others))

    def load(self, scheme: str) -> Any:
        """The occupant that a scheme names. Errors: `ConfigurationError` that lists the known schemes, or names the
        extra that has what an occupant needs.
        """
        if scheme in self.ours:
            module, _, name = self.ours[scheme].partition(":")
            try:
                return getattr(import_module(module), name)
            except ModuleNotFoundError as missing:
                # An extra is called as the folder of its occupants is.
                raise not_installed(missing, extra=module.split(".")[-2]) from missing
        for found in installed(self.group).select(name=scheme):
            return found.load()
        raise ConfigurationError(
            f"no {self.thing} is known for {scheme}://",
            hint=f"A {self.thing} takes {', '.join(f'{known}://' for known in self.known())}; others come with a "
            f"package that has an entry point in the group {self.group}.",
        )


@lru_cache(maxsize=_KEPT_PATHS)
def _everything(path: tuple[str, ...]) -> Any:  # noqa: ARG001  # what is found depends on it
    """Read once: it opens two files of every installed distribution, which are hundreds beside Airflow. Its type is
    another one before Python 3.12.
    """
    return entry_points()
