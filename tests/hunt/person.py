"""Does as a careful person would: statements at a side, commands of `parallel-apply`, and what these say in turn."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import psycopg

from airflow_parallel_apply.pipeline.errors import SourceError
from airflow_parallel_apply.pipeline.model.finding import Side
from tests.hunt.commands import invoked
from tests.hunt.verdicts import Caught
from tests.support.rig import execute

if TYPE_CHECKING:
    from tests.hunt.player import Player

_SQL: Final = re.compile(
    r"\b(?:ALTER|COMMENT ON|CREATE|DROP|GRANT|INSERT INTO|UPDATE|DELETE FROM|TRUNCATE|SET|RESET)"
    r"\s+[A-Z\"a-z].*?(?=;|\), then| at the target\b| at the source\b|\. |\.$|, then|, or |$)"
)
_PLACEHOLDER: Final = re.compile(r"…|\.\.\.|<[a-z ]+>")
COMMAND: Final = re.compile(r"parallel-apply (?:recopy|adopt-source|install-ddl-capture)(?: +(?:--[a-z-]+|[^\s`;,]+))*")
DECIDE_PREPARED: Final = "COMMIT PREPARED or ROLLBACK PREPARED"
"""A hint about a transaction that was prepared."""
_SWITCH: Final = "SELECT pg_switch_wal()"
_TIMES_REFUSED: Final = 5
"""How often a command may say what else is to be done first."""
OTHERWISE: Final = "Should it fail for a value that is there"
"""Begins what helps where the command before it does not."""
_INSTEAD: Final = "Copy it with that"
"""Begins the command that is to be used in place of the one that was refused."""
_OF_TABLE: Final = re.compile(r"\btable ([^\s,\]]+)[,\]]")
_GO_ON: Final = "Then go on: "
"""Ends what is done at the source before the rest."""
_AT_SOURCE: Final = re.compile(r"(?<!\. )(?<!: )\bat the source\b(?!')")

MISSING: Final = "a hint names a command that is not there"


class Person:
    """Does what is said. `done`: what was executed so far."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self.done: list[str] = []

    def command(self, text: str) -> str:
        """A command of `parallel-apply`, with the pipeline's options where it leaves them out."""
        result, done = invoked(self._player.rig, text), text
        if "No such command" in result.output:
            raise Caught(MISSING, text)
        self.done.append(text)
        if result.exit_code and DECIDE_PREPARED in " ".join(result.output.split()):
            done = f"{done}, after {self._player.end_sessions()}"
            result = invoked(self._player.rig, text)
        told: list[str] = []
        for _ in range(_TIMES_REFUSED):
            refused = " ".join(result.output.split())
            if not result.exit_code or "Hint:" not in refused:
                break
            hint = refused.split("Hint:")[1]
            if _INSTEAD in hint and (instead := COMMAND.search(hint)):
                text = instead.group().rstrip(".:")
                how = text
            elif not (how := self._refused(Exception(refused), hint, is_again=refused in told)):
                break
            told.append(refused)
            done = f"{done}, after {how}"
            result = invoked(self._player.rig, text)
        return f"{done}: {result.exit_code} {result.output.strip()[-1000:]}"

    def _refused(self, error: Exception, hint: str, *, is_again: bool) -> str:
        """Do what helps where a command was refused; the table is emptied where the same helped nothing before."""
        emptied = ""
        if is_again and "empty the table" in hint and (table := _OF_TABLE.search(str(error))):
            emptied = self._execute(Side.TARGET, [f"TRUNCATE {table.group(1)} CASCADE"])
        how = self._switched(error, hint) or self._sql(error, hint.partition(OTHERWISE)[0])
        return f"{emptied}; {how}" if emptied else how

    def _sql(self, error: Exception, hint: str) -> str:
        first, then, rest = hint.rpartition(_GO_ON)
        before = self._execute(Side.SOURCE, statements(first)) if then else ""
        told = statements(rest)
        if not told:
            return before
        is_of_source = str(error).startswith("the source") and "at the target" not in rest
        is_at_source = isinstance(error, SourceError) or is_of_source or bool(_AT_SOURCE.search(rest))
        done = self._execute(Side.SOURCE if is_at_source else Side.TARGET, told)
        return f"{before}; {done}" if before else done

    def _execute(self, side: Side, statements: list[str]) -> str:
        ran: list[str] = []
        settings: list[str] = []
        for statement in statements:
            if statement.startswith(("SET ", "RESET ")):
                settings.append(statement)
                continue
            try:
                self._execute_one(side, "; ".join((*settings, statement)))
                ran.append(f"{side}: {statement}")
            except psycopg.Error as failure:
                ran.append(f"{side}: {statement} FAILED {failure.diag.message_primary}")
        self.done += ran
        return "; ".join(ran)

    def _execute_one(self, side: Side, statement: str) -> None:
        """As somebody who may: at the source as the pipeline's role, if that suffices."""
        rig = self._player.rig_of_owner
        try:
            execute(rig.source_dsn if side is Side.SOURCE else rig.target_dsn, statement)
        except psycopg.errors.InsufficientPrivilege:
            execute(self._player.world.servers[side].dsn("hunt"), statement)

    def _switched(self, error: Exception, hint: str) -> str:
        """As a superuser."""
        if _SWITCH not in hint:
            return ""
        execute(self._player.world.servers["source"].dsn("hunt"), _SWITCH)
        return _SWITCH


def at_source(note: str) -> list[str]:
    return statements(note) if _AT_SOURCE.search(note) else []


def statements(text: str) -> list[str]:
    return [found.strip() for found in _SQL.findall(text) if not _PLACEHOLDER.search(found)]
