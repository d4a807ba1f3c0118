"""The DAG `export_changes` and the command `export` write a log's changes, or a query's rows, once."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException
from psycopg.conninfo import conninfo_to_dict
from typer.testing import CliRunner

from airflow_parallel_apply.cli import app
from airflow_parallel_apply.demo.kafka import KafkaBroker
from airflow_parallel_apply.operators.encode import EncodeOperator
from tests.provider.dag_runs import load_dag, without_retries
from tests.provider.fakes import KeptForTask
from tests.support.kafka import committed
from tests.support.variants import gated
from tests.support.written_log import Change, append, make_log

pytestmark = pytest.mark.usefixtures("airflow_home")


@pytest.fixture
def log_url(tmp_path: Path) -> str:
    url = str(tmp_path / "log")
    make_log(url)
    append(url, 0, [[Change("I", 1, "a")], [Change("I", 2, "b"), Change("D", 1)]])
    return url


@pytest.fixture
def dag(monkeypatch: pytest.MonkeyPatch) -> DAG:
    dag = load_dag("export_changes")
    without_retries(dag, monkeypatch)
    return dag


@gated
def test_a_run_exports_what_is_new_and_a_rerun_nothing(dag: DAG, log_url: str, tmp_path: Path) -> None:
    conf = {"pipeline": "p", "log_url": log_url, "place": str(tmp_path / "out"), "tables": ["public.*"], "threads": 1}
    reports = []
    for _ in range(2):
        done = dag.test(run_conf=conf)
        assert done.state == "success"
        (task,) = done.get_task_instances()
        reports.append(task.xcom_pull("export"))
    assert [(one["rows"], one["last_seqno"], one["version"]) for one in reports] == [(3, 1, 0), (0, 1, 0)]
    (path,) = reports[0]["files"]
    rows = pq.read_table(path.removeprefix("file://")).to_pylist()
    assert [(row["_operation"], row["id"]) for row in rows] == [("insert", 1), ("insert", 2), ("delete", 1)]


def connection_of(dsn: str) -> str:
    """A connection in JSON."""
    parts = conninfo_to_dict(dsn)
    names = {"host": "host", "port": "port", "user": "login", "password": "password", "dbname": "schema"}
    return json.dumps(
        {"conn_type": "postgres", **{names[name]: value for name, value in parts.items() if name in names}}
    )


class Task:
    """The part of a task's context that an operator without a run needs."""

    def __init__(self) -> None:
        self.pushed: dict[str, Any] = {}

    def xcom_push(self, key: str, value: object) -> None:
        self.pushed[key] = value


def executed(**parameters: Any) -> dict[str, Any]:
    context: Any = {"ti": Task()}
    return EncodeOperator(task_id="export", **parameters).execute(context)


def test_a_query_goes_into_the_topics_of_a_connection_once(source_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with KafkaBroker() as broker:
        topics = {"conn_type": "parallel_apply_kafka", "host": broker.address, "schema": "shop"}
        monkeypatch.setenv("AIRFLOW_CONN_SHOP_TOPICS", json.dumps(topics))
        monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", connection_of(source_dsn))
        query = {"sql": "SELECT 1 AS a", "source_conn_id": "shop_db", "key": "a", "export_id": "one"}
        reports = [executed(place_conn_id="shop_topics", table="sales.daily", **query) for _ in range(2)]
        assert [(one["rows"], one["topics"]) for one in reports] == [(1, ["shop.sales.daily"]), (0, [])]
        (message,) = committed(broker.address, "shop.sales.daily")
        assert (message.key, message.value) == (b'{"a":1}', b'{"a":1}')


def test_a_run_that_has_the_id_of_a_deleted_one_exports_its_query(
    source_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", connection_of(source_dsn))

    def rows(kept: KeptForTask, **interval: datetime) -> int:
        names = {"dag_id": "sales", "task_id": "export", "map_index": -1, "xcom_push": lambda *_: None}
        context: Any = {"run_id": "friday", "task_state_store": kept, "ti": SimpleNamespace(**names), **interval}
        task = EncodeOperator(
            task_id="export", sql="SELECT 7 AS a", source_conn_id="shop_db", place=str(tmp_path / "out")
        )
        task.render_template_fields(context)
        report: dict[str, Any] = task.execute(context)
        return int(report["rows"])

    first, second = datetime(2026, 1, 30, tzinfo=UTC), datetime(2026, 1, 31, tzinfo=UTC)
    deleted, again = KeptForTask(), KeptForTask()
    assert [rows(deleted), rows(deleted), rows(again)] == [1, 0, 1]
    interval = {"data_interval_start": first, "data_interval_end": second}
    assert [rows(deleted, **interval), rows(again, **interval)] == [1, 0]
    longer = {**interval, "data_interval_end": datetime(2026, 2, 1, tzinfo=UTC)}
    assert [rows(again, **longer), rows(again, **longer), rows(again, **interval)] == [1, 0, 0]
    day: Any = 20260131  # of a DAG that renders templates to what they look like
    query = {"sql": "SELECT 7 AS a", "source_conn_id": "shop_db", "place": str(tmp_path / "out")}
    assert executed(export_id=day, **query)["export_id"] == "20260131"


@pytest.mark.parametrize(
    ("given", "exclude"), [(None, ()), ("[]", ()), ('{"exclude": ["a.b"]}', ("a.b",)), ("!a.b", ("a.b",))]
)
def test_an_export_that_names_no_tables_has_those_of_all_schemas(given: str | None, exclude: tuple[str, ...]) -> None:
    """As the form says it that was emptied, too: what an export passes over never comes."""
    tables = EncodeOperator(task_id="export", pipeline="p", place="/out", tables=given)._options().tables
    assert (tables.include, tables.exclude) == (("*.*",), exclude)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"place": "x"}, "neither pipeline nor sql"),
        ({"pipeline": "p", "place": "out"}, "parameter place: 'out' is not usable"),
        ({"pipeline": "p", "place": "/out", "tables": {"include": []}}, "parameter tables: 'no include pattern'"),
        ({"pipeline": "p"}, "place and place_conn_id"),
        ({"pipeline": "p", "place_conn_id": "shop_db"}, "no connection to topics"),
        ({"sql": "SELECT 1", "place": "x"}, "source_conn_id"),
        ({"sql": "SELECT 1", "place": "x", "source_conn_id": "a", "until_seqno": "3"}, "until_seqno"),
    ],
)
def test_parameters_that_do_not_go_together_are_refused(
    parameters: dict[str, str], said: str, log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", "postgresql://nobody@localhost/nothing")
    with pytest.raises(AirflowFailException, match=said):
        executed(log_url=log_url, **parameters)


def test_a_wrong_parameter_is_a_red_task_that_names_it(dag: DAG, log_url: str, tmp_path: Path) -> None:
    task = EncodeOperator(task_id="export", pipeline="p", place=str(tmp_path), log_url=log_url, threads="0")
    pushed: dict[str, Any] = {}
    context: Any = {"ti": type("Task", (), {"xcom_push": lambda self, key, value: pushed.update({key: value})})()}
    with pytest.raises(Exception, match="parameter threads"):
        task.execute(context)
    assert "threads" in pushed["error"]


def test_the_command_exports_and_tells_what_it_did(log_url: str, tmp_path: Path) -> None:
    place = str(tmp_path / "out")
    arguments = ["export", "--log-url", log_url, "--to", place, "--format", "csv"]
    first = CliRunner().invoke(app, [*arguments, "--until-seqno", "0"])
    assert first.exit_code == 0, first.output
    assert first.stdout.startswith("exported seqnos 0 to 0: 1 rows, ")
    second = CliRunner().invoke(app, [*arguments, "--json", "--sweep"])
    report = json.loads(second.stdout)
    assert (report["first_seqno"], report["last_seqno"], report["rows"], report["swept"]) == (1, 1, 2, [])
    assert CliRunner().invoke(app, arguments).stdout == "nothing to export: the place comes up to seqno 1\n"
    wrong = CliRunner().invoke(app, [*arguments[:-1], "parquet"])
    assert wrong.exit_code == 1
    assert "error: " in wrong.stderr
    assert "the format is csv" in wrong.stderr


def test_the_command_exports_a_query(source_dsn: str, tmp_path: Path) -> None:
    arguments = ["export", "--sql", "SELECT 7 AS a", "--source", source_dsn, "--to", str(tmp_path / "out")]
    first = CliRunner().invoke(app, [*arguments, "--export-id", "one", "--format", "json"])
    assert first.stdout.startswith("exported the query's rows, export one: 1 rows"), first.output
    lacking = CliRunner().invoke(app, arguments)
    assert lacking.exit_code == 1
    assert "--export-id" in lacking.stderr
    neither = CliRunner().invoke(app, ["export", "--to", str(tmp_path / "out")])
    assert "--log-url and --sql" in neither.stderr
