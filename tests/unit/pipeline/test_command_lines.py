"""Commands in hints: whole lines that a shell takes as they are."""

from __future__ import annotations

import re
import shlex

import pytest

from airflow_parallel_apply.commands import reporting_errors
from airflow_parallel_apply.pipeline.errors import START_ANEW, LogError, TargetError
from airflow_parallel_apply.pipeline.model.finding import Side, command_line, hint_of, new_finding


def test_a_command_in_a_hint_names_the_pipeline_once_that_is_known() -> None:
    tables = ["public.t", 'Öl und "mehr".it\'s `a` $b']
    error = TargetError("no", hint=f"Run `{command_line('recopy', tables)}`; then run again.")
    assert "recopy --pipeline … --table public.t" in str(error)
    error.at(pipeline="p")
    error.hint = f"First the rest. {error.hint}"
    found = re.search(r"`(parallel-apply .*)`; then", str(error))
    assert found is not None
    assert shlex.split(found[1]) == [
        *("parallel-apply", "recopy", "--pipeline", "p"), *(word for name in tables for word in ("--table", name)),
    ]  # fmt: skip
    assert command_line("vouch", tables[:1], "p") == "parallel-apply vouch --pipeline p --table public.t"


def test_an_error_of_a_command_names_the_pipeline_in_its_hint(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), reporting_errors("p"):
        raise LogError("the log is gone", hint=START_ANEW)
    assert "`parallel-apply drop --pipeline p --log-url …`" in capsys.readouterr().err


def test_a_finding_names_the_pipeline_in_its_commands() -> None:
    found = new_finding(Side.TARGET, "t", "no", command_line("recopy", ["public.t"]), note=START_ANEW).named("p")
    assert found.fix == ("parallel-apply recopy --pipeline p --table public.t",)
    assert "`parallel-apply drop --pipeline p --log-url …`" in found.note


def test_a_hint_shows_the_first_findings_with_all_the_commands_that_belong_together() -> None:
    found = [new_finding(Side.TARGET, "t", "no", *commands) for commands in (["A"], ["SET b", "SET c", "B"], ["C"])]
    assert hint_of(found) == "Run A; SET b; SET c; B. `parallel-apply check` shows all commands."
    assert hint_of(found[1:2]) == "Run SET b; SET c; B."


def test_a_hint_shows_a_command_that_mends_several_things_once() -> None:
    found = [new_finding(Side.SOURCE, where, "no", "A") for where in ("t", "u", "v", "w")]
    assert hint_of(found) == "Run A."
    assert hint_of([*found, new_finding(Side.SOURCE, "x", "no", "B")]) == "Run A; B."
