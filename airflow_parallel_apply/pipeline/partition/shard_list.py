"""The shard list: a TOML file that gives shards their channels.

::

    default = "hash"                    # of shards not listed: "hash", "critical", or a channel's number
    hash = "text"                       # "text": the hash of the shard; "number": the shard itself modulo the channels
    critical = ["billing", "global"]    # a transaction of such a shard runs alone

    [channels]
    "tenant 1" = 0
    europe = 1

Only `[channels]` is asked for. Source: Tungsten's shard list, `name=channel` with (default), (critical), (hash-method).
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from airflow_parallel_apply.pipeline.errors import ConfigurationError

_KNOWN: Final = frozenset({"default", "hash", "critical", "channels"})


class ShardHash(StrEnum):
    """The hash by which a shard that is not listed finds its channel under `default = "hash"`."""

    TEXT = "text"
    NUMBER = "number"


class Default(StrEnum):
    """The treatment of shards that are not listed, where the file names no channel for them."""

    HASH = "hash"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardList:
    """The file's contents, in an order of its own: two files that mean the same make the same routing digest."""

    channels: tuple[tuple[str, int], ...] = ()
    default: Default | int = Default.HASH
    hash: ShardHash = ShardHash.TEXT
    critical: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The form inside a routing."""
        return {
            "channels": dict(self.channels),
            "default": self.default,
            "hash": self.hash,
            "critical": list(self.critical),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ShardList:
        """Inverse of `to_json`."""
        default = value["default"]
        return cls(
            channels=tuple(sorted(value["channels"].items())),
            default=default if isinstance(default, int) else Default(default),
            hash=ShardHash(value["hash"]),
            critical=tuple(value["critical"]),
        )


def read_shard_list(path: str, *, channels: int) -> ShardList:
    """Read and check the file. Errors: `ConfigurationError`, which names the file and what is wrong in it."""
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise _wrong(path, f"cannot be read: {error.strerror}", "a file that this worker sees") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _wrong(path, f"is not TOML: {error}", "lines such as europe = 1 below [channels]") from error
    unknown = sorted(found.keys() - _KNOWN)
    if unknown:
        raise _wrong(path, f"has unknown entries: {', '.join(unknown)}", "default, hash, critical and [channels]")
    listed = found.get("channels", {})
    critical = found.get("critical", [])
    default = found.get("default", "hash")
    if not isinstance(listed, dict) or not (listed or "channels" in found):
        raise _wrong(path, "has no [channels]", "[channels] with lines such as europe = 1")
    for shard, channel in [*listed.items(), *([] if isinstance(default, str) else [("default", default)])]:
        if not isinstance(channel, int) or isinstance(channel, bool) or not 0 <= channel < channels:
            raise _wrong(
                path,
                f"gives {shard} the channel {channel!r}, and the pipeline has {channels}",
                f"channels from 0 to {channels - 1}; raise the parameter channels otherwise",
            )
    if not isinstance(critical, list) or not all(isinstance(shard, str) for shard in critical):
        raise _wrong(path, "has a critical that is not a list of texts", 'critical = ["billing"]')
    if "" in listed:
        raise _wrong(path, "gives a channel to the empty shard, which is always critical", "shards with a name")
    both = sorted(set(critical) & set(listed))
    if both:
        raise _wrong(path, f"names {', '.join(both)} as critical and with a channel", "each shard once")
    return ShardList(
        channels=tuple(sorted(listed.items())),
        default=default if isinstance(default, int) else _word(path, "default", Default, default),
        hash=_word(path, "hash", ShardHash, found.get("hash", "text")),
        critical=tuple(sorted(set(critical))),
    )


def _word(path: str, name: str, words: Any, value: object) -> Any:
    try:
        return words(value)
    except ValueError:
        more = ", or a channel's number" if words is Default else ""
        raise _wrong(path, f"has {name} = {value!r}", f"{' or '.join(words)}{more}") from None


def _wrong(path: str, message: str, takes: str) -> ConfigurationError:
    return ConfigurationError(f"parameter shard_file: {path} {message}", hint=f"It takes {takes}.")
