"""A source or a target is chosen by its URL's scheme; another package may bring one."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_parallel_apply.cli.addresses import database_at
from airflow_parallel_apply.pipeline.capture.adoption import adopt_source
from airflow_parallel_apply.pipeline.check.open import type_findings
from airflow_parallel_apply.pipeline.config import Endpoint, PipelineConfig, Start
from airflow_parallel_apply.pipeline.copy.open import (
    copy_findings,
    goes_into_log,
    is_copying,
    is_copying_between,
    read_progress,
    recopy_tables,
)
from airflow_parallel_apply.pipeline.errors import ConfigurationError
from airflow_parallel_apply.pipeline.ledger.open import open_pipeline
from airflow_parallel_apply.pipeline.source.open import followed_at, install_ddl_capture_at, open_source
from airflow_parallel_apply.pipeline.target.open import logs_applied_at, open_target
from tests.support.installed import installed

MEMO = Endpoint(conn_id="", url="memo://user:hush@host:7/desk")
CONFIG = PipelineConfig(pipeline="demo", log_url="none")


class MemoConnector:
    """Opens what it was given."""

    def open(self, endpoint, *rest, **named):
        return endpoint.url


def test_another_package_brings_a_source_and_a_target(tmp_path: Path) -> None:
    brings = f"memo = {__name__}:{MemoConnector.__name__}"
    groups = {"airflow_parallel_apply.sources": brings, "airflow_parallel_apply.targets": brings}
    with installed(tmp_path, "memo", groups):
        assert open_source(MEMO, CONFIG) == MEMO.url
        assert open_target(MEMO, "demo") == MEMO.url


@pytest.mark.parametrize(
    ("scheme", "module", "extra"),
    [("mariadb", "pymysql", "mariadb"), ("mysql", "pymysql", "mariadb"), ("delta", "deltalake", "delta")],
)
def test_a_library_that_is_not_installed_is_told_with_its_extra(
    scheme: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = f"airflow_parallel_apply.pipeline.target.{extra}"
    for name in [name for name in sys.modules if name.startswith((room, module))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match="is not installed here") as refused:
        open_target(Endpoint(conn_id="", url=f"{scheme}://u@h/shop"), "demo")
    assert f"[{extra}]" in str(refused.value)


@pytest.mark.parametrize(
    ("thing", "call"),
    [("source", lambda: open_source(MEMO, CONFIG)), ("target", lambda: open_target(MEMO, "demo"))],
)
def test_an_unknown_scheme_is_refused_with_those_that_are_known(tmp_path: Path, thing: str, call) -> None:
    group = f"airflow_parallel_apply.{thing}s"
    with (
        installed(tmp_path, "paper", {group: f"paper = {__name__}:{MemoConnector.__name__}"}),
        pytest.raises(ConfigurationError) as raised,
    ):
        call()
    assert f"no {thing} is known for memo://" in raised.value.message
    assert "postgresql://, " in (raised.value.hint or "")
    assert ", paper://;" in (raised.value.hint or "")
    assert group in (raised.value.hint or "")
    assert "hush" not in str(raised.value)


class MemoCopies:
    """Knows of copies into a desk."""

    def findings(self, config, source, target, relations):
        return ("looked at",)

    def progress(self, target, pipeline):
        return f"{pipeline} to {target.place}"

    def is_copying(self, target, pipeline):
        return True


def test_another_package_brings_copies_between_two_schemes(tmp_path: Path) -> None:
    groups = {"airflow_parallel_apply.copies": f"paper-to-memo = {__name__}:{MemoCopies.__name__}"}
    paper = Endpoint(conn_id="", url="paper://desk")
    with installed(tmp_path, "memo", groups):
        assert copy_findings(CONFIG, paper, MEMO, ()) == ("looked at",)
        assert read_progress(MEMO, "demo") == "demo to host:7/desk"
        assert is_copying(MEMO, "demo")
        assert not is_copying(paper, "demo")
        assert is_copying_between(paper, MEMO, "demo")
        assert not is_copying_between(MEMO, MEMO, "demo"), "another pair's package is not asked"


def lacks_a_type(config, source, target, relations, *, expected):
    return (f"{config.pipeline}: {source.scheme} to {target.scheme}",)


def test_another_package_compares_the_types_of_two_schemes(tmp_path: Path) -> None:
    groups = {"airflow_parallel_apply.type_checks": f"paper-to-memo = {__name__}:{lacks_a_type.__name__}"}
    paper = Endpoint(conn_id="", url="paper://desk")
    with installed(tmp_path, "memo", groups):
        assert type_findings(CONFIG, paper, MEMO, (), expected=()) == ("demo: paper to memo",)
        assert type_findings(CONFIG, MEMO, paper, (), expected=()) == ()


def test_a_pair_without_a_way_of_its_own_copies_into_the_log_and_copies_no_table_anew() -> None:
    assert goes_into_log(MEMO, MEMO)
    assert copy_findings(CONFIG, MEMO, MEMO, ()) == ()
    (found,) = copy_findings(replace(CONFIG, start=Start.COPY, create_tables=True), MEMO, MEMO, ())
    assert found.what == "create_tables makes no tables of memo:// at memo://"
    assert read_progress(MEMO, "demo") is None
    with pytest.raises(ConfigurationError, match="cannot be copied anew from memo:// to memo://") as refused:
        recopy_tables(CONFIG, MEMO, MEMO, (), report=lambda progress: None)
    assert "memo-to-memo in the group airflow_parallel_apply.copies" in str(refused.value.hint)


def test_a_database_that_can_be_no_source_publishes_nothing() -> None:
    assert followed_at(MEMO) == {}
    assert logs_applied_at(MEMO) == {}


@pytest.mark.parametrize("op", ["install-ddl-capture", "adopt-source"])
def test_a_command_is_refused_for_a_source_that_offers_no_such_thing(tmp_path: Path, op: str) -> None:
    brings = {"airflow_parallel_apply.sources": f"memo = {__name__}:{MemoConnector.__name__}"}
    with (
        installed(tmp_path, "memo", brings),
        pytest.raises(ConfigurationError, match=f"{op} is not for a source at memo://"),
    ):
        install_ddl_capture_at(MEMO) if op == "install-ddl-capture" else adopt_source(MEMO, CONFIG)


@pytest.mark.parametrize(
    ("url", "scheme", "place"),
    [
        ("memo://user:hush@host:7/desk", "memo", "host:7/desk"),
        ("postgres://me:hush@db.invalid/shop", "postgresql", "db.invalid:5432/shop"),
        ("host=db.invalid dbname=shop password=a://b", "postgresql", "db.invalid:5432/shop"),
        ("service=shop password=hush", "postgresql", "service=shop"),
        ("postgresql://me:hush@/books?service=shop", "postgresql", "service=shop dbname=books"),
    ],
)
def test_an_endpoint_tells_its_scheme_and_its_place_without_secrets(url: str, scheme: str, place: str) -> None:
    endpoint = Endpoint(conn_id="", url=url)
    assert (endpoint.scheme, endpoint.place) == (scheme, place)
    assert url not in repr(endpoint)


def test_a_ledger_of_another_service_is_a_database_of_its_own() -> None:
    ledger = Endpoint(conn_id="", url="service=books")
    for url, is_one in (("service=shop", False), ("service=books", True)):
        session = open_pipeline(Endpoint(conn_id="", url=url, ledger=ledger), "demo")
        assert session.is_one_database is is_one


def test_a_command_takes_the_url_of_any_scheme() -> None:
    assert database_at(MEMO.url, "source") == Endpoint(conn_id="--source", url=MEMO.url)
