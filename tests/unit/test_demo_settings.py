"""The demo's variables: defaults, ranges, and errors that name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_parallel_apply.demo.settings import DemoSettings
from airflow_parallel_apply.pipeline.errors import ConfigurationError

ROOT = Path(__file__).resolve().parents[2]


def test_nothing_told_means_the_defaults() -> None:
    settings = DemoSettings.from_environment({"DEMO_CHANNELS": " ", "DEMO_KEEP": "0"}, root=ROOT)
    assert settings == DemoSettings(dags=ROOT / "dags", directory=ROOT / ".demo")
    assert (settings.transactions, settings.channels, settings.scale, settings.keep) == (50_000, 4, 1, False)


def test_all_variables_are_read() -> None:
    told = {"DEMO_TRANSACTIONS": "1_000", "DEMO_CHANNELS": "8", "DEMO_SCALE": "3", "DEMO_KEEP": "1"}
    settings = DemoSettings.from_environment(told, root=ROOT)
    assert (settings.transactions, settings.channels, settings.scale, settings.keep) == (1_000, 8, 3, True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DEMO_TRANSACTIONS", "many"),
        ("DEMO_TRANSACTIONS", "0"),
        ("DEMO_TRANSACTIONS", "-5"),
        ("DEMO_TRANSACTIONS", "1e5"),
        ("DEMO_TRANSACTIONS", "١٢"),
        ("DEMO_CHANNELS", "65"),
        ("DEMO_CHANNELS", "4.0"),
        ("DEMO_SCALE", "0"),
        ("DEMO_KEEP", "maybe"),
        ("DEMO_TARGET", "oracle"),
        ("DEMO_CONSISTENCY", "both"),
        ("DEMO_EPOCH_PROTOCOL", "three_phase"),
    ],
)
def test_an_unusable_value_is_an_error_that_names_the_variable_and_what_it_takes(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{name}=\S+ is not usable.*Hint: {name} takes"):
        DemoSettings.from_environment({name: value}, root=ROOT)


def test_without_the_checkout_it_says_where_the_demo_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="checkout"):
        DemoSettings.from_environment({}, root=tmp_path)


def test_everything_it_writes_is_in_one_ignored_directory() -> None:
    settings = DemoSettings.from_environment({}, root=ROOT)
    assert all(path.is_relative_to(ROOT / ".demo") for path in (settings.run, settings.cache, settings.spark))
    assert ".demo/" in (ROOT / ".gitignore").read_text().splitlines()
