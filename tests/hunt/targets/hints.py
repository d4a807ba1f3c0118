"""Follows hints about a target of another kind: in its own words, by its own address, or by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from airflow_parallel_apply.pipeline.config import DdlPolicy, Start
from airflow_parallel_apply.pipeline.model.finding import Side
from tests.hunt.by_hand import is_by_hand, repeated
from tests.hunt.hints import Follower
from tests.hunt.targets.alterations import Alteration, alterations
from tests.hunt.targets.protocol import HuntedTarget

if TYPE_CHECKING:
    from tests.hunt.player import Player

_NO_COPY: Final = "tables cannot be copied anew"
"""Says recopy into such a target, and in its own hint: begin anew."""
_PATH: Final = re.compile(r"\b(\w+)\.(\w+)")
_TABLE: Final = re.compile(r"\btable (\w+\.\w+)")


class FollowerElsewhere(Follower):
    """As `Follower`."""

    def __init__(self, player: Player, hunted: HuntedTarget) -> None:
        super().__init__(player)
        self._hunted = hunted
        self._changed = player.green_at

    def follow(self, error: Exception) -> str:
        told = str(error)
        hint = told.partition("Hint:")[2]
        how = self._hunted.follow(told) or self._excluded(told, hint)
        if how:
            self._player.follow_target()
        elif is_by_hand(hint):
            how = self._change(error, hint)
            if how and "ddl=skip" in hint:
                self._player.configure({"ddl": DdlPolicy.SKIP})
        if how:
            self.done.append(how)
            self._player.say(f"    followed: {how}")
            return how
        how = super().follow(error)
        if _NO_COPY in how:
            how = f"{how}; {self._begun_anew()}"
            self._player.say(f"    followed: {how}")
        return how

    def _excluded(self, told: str, hint: str) -> str:
        """Leave a table out for good."""
        found = _TABLE.search(told)
        if found is None or "exclude the table, and begin anew" not in hint:
            return ""
        given = self._player.rig.config.tables
        self._player.configure({"tables": replace(given, exclude=(*given.exclude, found.group(1)))})
        return f"excluded {found.group(1)}; {self._begun_anew()}"

    def _execute(self, side: Side, statements: list[str]) -> str:
        if side is Side.SOURCE:
            return super()._execute(side, statements)
        done = self._hunted.run(statements)
        self.done.append(done)
        return done

    def _own(self, error: Exception, hint: str) -> str:
        return ""

    def _change(self, error: Exception, hint: str) -> str:
        """All that the source's tables went through since the last green run, in the target's words."""
        if not is_by_hand(hint):
            return ""
        told = str(error)
        statements = repeated(self._player.past[self._changed :], told)
        self._changed = len(self._player.past)
        made = [one for altered in alterations(statements) for one in _of_those_told(altered, told)]
        return self._hunted.alter(self._player.rig, made)

    def _anew(self, error: Exception, hint: str) -> str:
        if not re.search(r"(?i)anew: |start (it |the pipeline )?anew|parallel-apply drop|start it anew", hint):
            return ""
        return self._begun_anew()

    def _begun_anew(self) -> str:
        player = self._player
        self.done.append("started anew")
        dropped = self.command("parallel-apply drop --force --log")
        for statement in re.findall(r"^ +source: (.+)$", dropped, re.MULTILINE):
            self._execute(Side.SOURCE, [statement])
        self._hunted.begin_anew()
        player.follow_target()
        player.begin_anew()
        player.configure({"start": Start.COPY})
        player.make_tables(may_refuse=())
        return f"started anew: {dropped}"


def _of_those_told(altered: Alteration, told: str) -> list[Alteration]:
    """An alteration of a table that is told, and of those that inherit from it and are told, too, or alone."""
    named = {name for schema, name in _PATH.findall(told) if schema == altered.schema}
    tables = sorted(name for name in named if name == altered.table or name == f"{altered.table}_child")
    return [replace(altered, table=name) for name in tables or [altered.table]]
