"""The code has what README and docs/ promise: DAGs load, parameters are those of the form, every option of a
command exists.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from airflow.dag_processing.dagbag import DagBag

from airflow_parallel_apply import cli
from airflow_parallel_apply.queue import __main__ as queue_command
from airflow_parallel_apply.router import commands as router_command
from tests.provider.conftest import REPOSITORY
from tests.support.queue_service import ServedQueue
from tests.support.variants import gated

PAGES = (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md")), REPOSITORY / "docker" / "README.md")
README = PAGES[0].read_text()
COMMANDS_PAGE, INDEX, PARAMETERS, QUEUE, SCHEDULES, TUTORIAL = (
    (REPOSITORY / "docs" / f"{name}.md").read_text()
    for name in ("commands", "index", "parameters", "queue", "schedules", "tutorial")
)
COMMANDS = {
    "parallel-apply": cli.app,
    "python -m airflow_parallel_apply.queue": queue_command.app,
    "python -m airflow_parallel_apply.router": router_command.app,
}


def _blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", [README, INDEX], ids=["README", "index"])
def test_the_dag_in_ten_lines_has_ten_lines_and_loads(text: str, tmp_path: Path) -> None:
    block = _blocks("python", text)[0]
    assert len([line for line in block.splitlines() if line.strip()]) == 10
    assert _task_ids(block, "orders", tmp_path) == _group("orders")


@pytest.mark.parametrize(("text", "dag_id"), [(TUTORIAL, "shop"), (SCHEDULES, "orders")], ids=["tutorial", "schedules"])
def test_the_dags_of_the_pages_load(text: str, dag_id: str, tmp_path: Path) -> None:
    (block,) = _blocks("python", text)
    assert _task_ids(block, dag_id, tmp_path) == _group(dag_id)


def _task_ids(text: str, dag_id: str, directory: Path) -> list[str]:
    file = directory / f"{dag_id}.py"
    file.write_text(text)
    bag = DagBag(str(file))
    assert not bag.import_errors
    return sorted(bag.dags[dag_id].task_ids)


def _group(group_id: str) -> list[str]:
    return sorted(f"{group_id}.{task}" for task in ("changes_available", "capture", "route", "open", "apply", "close"))


def test_the_table_of_parameters_is_that_of_the_form() -> None:
    bag = DagBag(str(REPOSITORY / "dags" / "parallel_apply.py"))
    section = _section(PARAMETERS, "Pipeline parameters")
    told = dict(re.findall(r"^\| `(\w+)` \| (.+?) \| .+ \|$", section, re.MULTILINE))
    form = {name: _shown(value) for name, value in bag.dags["parallel_apply"].params.dump().items()}
    assert told == form


def test_the_conf_that_the_tutorial_triggers_with_is_of_the_form() -> None:
    dag = DagBag(str(REPOSITORY / "dags" / "parallel_apply.py")).dags["parallel_apply"]
    (conf,) = re.findall(r"^airflow dags trigger parallel_apply --conf '(.+)'$", TUTORIAL, re.MULTILINE)
    assert set(json.loads(conf)) <= set(dag.params)
    dag.params.update(json.loads(conf))
    dag.params.validate()


def _shown(value: object) -> str:
    if value == "":
        return "empty"
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


def test_the_queue_s_guarantees_take_ten_lines() -> None:
    assert len(re.findall(r"^\d+\. .+$", _section(QUEUE, "Guarantees"), re.MULTILINE)) == 10


def test_the_example_of_an_atomic_move_does_it(tmp_path: Path) -> None:
    served = ServedQueue(tmp_path / "queue")
    found: dict[str, Any] = {}
    exec(_blocks("python", QUEUE)[0].replace("grpc://127.0.0.1:7411", served.url), found)  # noqa: S102
    queue = found["queue"]
    assert {stats.queue: stats.size for stats in queue.queue_stats()} == {"audit": 1, "billing": 1}
    (moved,) = queue.tasks("billing")
    assert (moved.task_id, moved.value) == (found["task"].task_id, {"order": 17, "checked": True})
    queue.close()
    served.stop()


def test_the_dag_that_uses_a_queue_loads(tmp_path: Path) -> None:
    (tmp_path / "bill_orders.py").write_text(_blocks("python", QUEUE)[-1])
    bag = DagBag(str(tmp_path / "bill_orders.py"))
    assert not bag.import_errors
    assert {"feed", "billed"} <= set(bag.dags["bill_orders"].task_ids)


def _section(text: str, title: str) -> str:
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def _told_commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for block in _blocks("sh", page.read_text()):
            for line in re.sub(r" \\\n +", " ", block).splitlines():
                command = line.split("  #")[0].strip()
                if command.startswith(tuple(COMMANDS)):
                    yield page.name, command


@gated
@pytest.mark.parametrize(("page", "command"), list(_told_commands()))
def test_every_command_is_complete_and_its_options_exist(
    page: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("PARALLEL_APPLY_TARGET", "PARALLEL_APPLY_QUEUE_DSN", "PARALLEL_APPLY_ROUTER"):
        monkeypatch.setenv(variable, "postgresql://nobody@nowhere.invalid/nothing")
    program = next(name for name in COMMANDS if command.startswith(name))
    verb, *arguments = shlex.split(command.removeprefix(program))
    group = typer.main.get_command(COMMANDS[program])
    # Parses and checks the arguments; runs nothing.
    group.commands[verb].make_context(verb, arguments)


def test_the_page_of_commands_has_each_in_the_order_of_the_help() -> None:
    group = typer.main.get_command(cli.app)
    told = re.findall(r"^\| \[`([a-z-]+)`\]", COMMANDS_PAGE, re.MULTILINE)
    assert told == group.list_commands(group.make_context("parallel-apply", ["--help"], resilient_parsing=True))


def test_every_environment_variable_that_is_told_is_read() -> None:
    source = "".join(file.read_text() for file in (REPOSITORY / "airflow_parallel_apply").rglob("*.py"))
    told = {name for page in PAGES for name in re.findall(r"(?<!CONN_)PARALLEL_APPLY_[A-Z_]+", page.read_text())}
    assert [name for name in sorted(told) if name not in source] == []
