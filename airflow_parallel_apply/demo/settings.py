"""Settings of `make demo`: the variables DEMO_…, checked once. Empty means the default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from airflow_parallel_apply.demo.targets import TargetName
from airflow_parallel_apply.pipeline.config import MAX_CHANNELS, Consistency, EpochProtocol
from airflow_parallel_apply.pipeline.errors import ConfigurationError

DIRECTORY: Final = ".demo"
PIPELINE: Final = "demo"
DATABASE: Final = "demo"
TABLES: Final = "public.pgbench_*"
SOURCE_CONNECTION: Final = "parallel_apply_source"
TARGET_CONNECTION: Final = "parallel_apply_target"
LEDGER_CONNECTION: Final = "parallel_apply_ledger"

_MAX_TRANSACTIONS: Final = 100_000_000
_MAX_SCALE: Final = 1_000

_Choice = TypeVar("_Choice", Consistency, EpochProtocol, TargetName)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """One demonstration. `dags`: the folder that Airflow parses; `directory`: everything that it writes is in here."""

    dags: Path
    directory: Path
    transactions: int = 50_000
    """pgbench transactions, four row changes each, beside the initial load of scale × 100,000 rows."""
    channels: int = 4
    scale: int = 1
    target: TargetName = TargetName.POSTGRES
    consistency: Consistency = Consistency.CHANNEL
    epoch_protocol: EpochProtocol = EpochProtocol.AUTO
    keep: bool = False
    """Leave the servers up at the end."""

    def __post_init__(self) -> None:
        _check("DEMO_TRANSACTIONS", self.transactions, 1, _MAX_TRANSACTIONS)
        _check("DEMO_CHANNELS", self.channels, 1, MAX_CHANNELS)
        _check("DEMO_SCALE", self.scale, 1, _MAX_SCALE)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], *, root: Path) -> DemoSettings:
        """The checkout `root` plays. Errors: `ConfigurationError`, which names the variable and what it takes."""
        if not (root / "dags" / "parallel_apply.py").is_file():
            raise ConfigurationError(
                f"there is no dags/parallel_apply.py in {root}",
                op="demo",
                hint="The demo runs from a checkout of the project, installed with `make install`.",
            )
        return cls(
            dags=root / "dags",
            directory=root / DIRECTORY,
            transactions=_number(environment, "DEMO_TRANSACTIONS", 50_000),
            channels=_number(environment, "DEMO_CHANNELS", 4),
            scale=_number(environment, "DEMO_SCALE", 1),
            target=_choice(environment, "DEMO_TARGET", TargetName.POSTGRES),
            consistency=_choice(environment, "DEMO_CONSISTENCY", Consistency.CHANNEL),
            epoch_protocol=_choice(environment, "DEMO_EPOCH_PROTOCOL", EpochProtocol.AUTO),
            keep=_switch(environment, "DEMO_KEEP"),
        )

    @property
    def run(self) -> Path:
        """The directory that one demonstration writes, and the next one removes."""
        return self.directory / "run"

    @property
    def log_url(self) -> str:
        """Where the pipeline's log is."""
        return (self.run / "log").as_uri()

    @property
    def cache(self) -> Path:
        """The directory of what the next demonstration need not make again."""
        return self.directory / "cache"

    @property
    def spark(self) -> Path:
        """The embedded Spark server's files: a server of the demo's own."""
        return self.directory / "spark"


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "").strip().replace("_", "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit():
        raise _wrong(name, text, "a whole number")
    return int(text)


def _choice(environment: Mapping[str, str], name: str, default: _Choice) -> _Choice:
    text = environment.get(name, "").strip().lower()
    try:
        return type(default)(text or default)
    except ValueError:
        raise _wrong(name, text, " or ".join(type(default))) from None


def _switch(environment: Mapping[str, str], name: str) -> bool:
    text = environment.get(name, "").strip().lower()
    if text in {"", "0", "no", "false"}:
        return False
    if text in {"1", "yes", "true"}:
        return True
    raise _wrong(name, text, "1 or 0")


def _check(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise _wrong(name, value, f"{least} to {most}")


def _wrong(name: str, value: object, takes: str) -> ConfigurationError:
    return ConfigurationError(f"{name}={value} is not usable", op="demo", hint=f"{name} takes {takes}.")
