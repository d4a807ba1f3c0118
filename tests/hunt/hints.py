"""Follows hints as a careful person without an idea would: the commands that are printed, else the known phrases."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import DdlPolicy, Start
from airflow_parallel_apply.pipeline.model.finding import Side, errors
from tests.hunt.by_hand import is_by_hand, named, repeated
from tests.hunt.person import COMMAND, DECIDE_PREPARED, OTHERWISE, Person, at_source
from tests.hunt.verdicts import RED, Caught
from tests.support.rig import execute

if TYPE_CHECKING:
    from tests.hunt.player import Player

_TAKEN_AS_DONE: Final = re.compile(r"run once with ddl=skip(?: and until=([0-9A-F]+/[0-9A-F]+))?")
_SKIPS: Final = re.compile(
    r"run once with ddl=skip and until=([0-9A-F]+/[0-9A-F]+), which skips (?:this statement(?: alone)?|what its "
    r"transaction sent)"
)
_SENT: Final = re.compile(
    r"what (?:its|the) transaction sent\. (?:Do the rest of that|Run that) at the target first, except on tables that "
    r"were copied anew since: (?P<texts>.*?)\.(?: |$)"
)
"""DDL that a run with ddl=skip passes over besides."""
_MADE_SINCE: Final = "may have been made since: if so, run once with ddl=skip"
_AS_IT_IS: Final = "Where it has what the statement makes already"
"""Begins what helps only where the target is as if the statement had been run."""
_LACKING: Final = re.compile(r'"(?:\w+\.)?(\w+)" does not exist')
_VOUCHED_FOR: Final = "Only where there was no USING"
"""Begins what a person does who knows the statement, and what it made of older rows."""
_NOTHING_ELSE: Final = "Restore the target from a backup, or start anew"


class Follower(Person):
    """Follows the hints of one run until it is green."""

    def __init__(self, player: Player) -> None:
        super().__init__(player)
        self._by_hand: set[str] = set()
        self._told: list[str] = []
        self._last = ""

    def follow(self, error: Exception) -> str:
        """Do what is said; in which way. Errors: `Caught`, where nothing is said that can be done."""
        self._last = told = str(error)
        hint = told.partition("Hint:")[2]
        stem = re.sub(r"generation \d+|seqno \d+", "", told)
        times = self._told.count(stem)
        self._told.append(stem)
        if times > 2:
            raise Caught("hints lead nowhere", told)
        if not times:
            hint = hint.partition(OTHERWISE)[0]
            hint = re.sub(f"Such a run skips {_SENT.pattern}", "", hint)
        if not times and _AS_IT_IS in hint and (how := self._made_first(told)):
            return how
        known = _TAKEN_AS_DONE.search(hint.partition(_VOUCHED_FOR)[0])
        if (times or "already exists" in told) and known is not None and _SKIPS.search(hint) is None:
            return self._taken_as_done(known)
        is_there = times or "already exists" in told or "does not exist" in told
        if is_there and _AS_IT_IS in hint and (found := _SKIPS.search(hint)):
            return self._skipped(found)
        if known is not None and _MADE_SINCE in hint and any("RENAME TO" in one for one in self.done):
            return self._taken_as_done(known)
        if known is not None and "), then run once with ddl=skip" in hint and (how := self._sql(error, hint)):
            return f"{how}; {self._taken_as_done(known)}"
        if "), then run once with ddl=apply" in hint and (how := self._sql(error, hint)):
            self._player.configure({"ddl": DdlPolicy.APPLY})
            return f"{how}; ddl=apply for a run"
        for way in (
            self._without,
            self._passing_over,
            self._check_first,
            self._switched,
            self._emptied,
            self._shell,
            self._sql,
            self._check,
            self._parameters,
            self._end_transactions,
            self._change,
            self._anew,
            self._again,
        ):
            if how := way(error, hint):
                self._player.say(f"    followed: {how}")
                return how
        kind = "red without a hint" if not hint else "a hint that nobody can follow"
        raise Caught(kind, told)

    def _shell(self, error: Exception, hint: str) -> str:
        found = COMMAND.search(hint)
        if found is None:
            return ""
        before = self._sql(error, hint[: found.start()])
        if "the same ALTER TYPE" in hint[: found.start()]:
            before = self._change(error, "by hand")
        done = f"{before}; {self.command(found.group().rstrip('.:'))}"
        # The command's own hint, which knows more than the one that led to it.
        return f"{done}; {self._anew(error, done)}" if _NOTHING_ELSE in done else done

    def _check_first(self, error: Exception, hint: str) -> str:
        """Follow `check`, and behind it the hint itself."""
        if "run that first" not in hint:
            return ""
        return f"{self._check(error, hint)}; {self._shell(error, hint) or self._sql(error, hint)}"

    def _emptied(self, error: Exception, hint: str) -> str:
        """The target's tables that have rows where the first run is to find none."""
        found = re.findall(r"(\S+) has rows, where the first run is to find none", str(error))
        return self._execute(Side.TARGET, [f"TRUNCATE {name} CASCADE" for name in found]) if "Empty it" in hint else ""

    def _check(self, error: Exception, hint: str) -> str:
        """Follow `check`, where it has commands."""
        rig = self._player.rig
        checked = check_pipeline(rig.config, rig.source, rig.target, queue=rig.queue)
        done = [
            self._execute(side, statements)
            for finding in (checked.findings if "parallel-apply check" in hint else errors(checked.findings))
            if finding.fix and finding.side in (Side.SOURCE, Side.TARGET)
            for side, statements in ((Side.SOURCE, at_source(finding.note)), (finding.side, list(finding.fix)))
            if statements
        ]
        return "; ".join(done) or self._own(error, hint)

    def _own(self, error: Exception, hint: str) -> str:
        owned = re.search(r"must be owner of table (\w+)", str(error))
        if owned is None or "its owner" not in hint:
            return ""
        paths = self._player.rig_of_owner.rows(
            f"SELECT format('ALTER TABLE %I.%I OWNER TO plain', schemaname, tablename) FROM pg_tables "
            f"WHERE tablename = '{owned.group(1)}'"
        )
        return self._execute(Side.TARGET, [path for (path,) in paths])

    def _parameters(self, error: Exception, hint: str) -> str:
        """`Run with ddl=apply`: for this run."""
        if "former parameters" in hint:
            return self._former()
        if "use partitioner=key" in hint and self._player.rig.config.partitioner != "key":
            self._player.configure({"partitioner": "key"})
            return "partitioner=key"
        found = re.search(r"[Rr]un (?:the pipeline )?with ddl=(apply|skip)", hint)
        policy = self._player.rig.config.ddl
        if found is None or policy.value == found.group(1):
            return ""
        self._player.configure({"ddl": DdlPolicy(found.group(1))})
        self.done.append(found.group(0))
        return found.group(0)

    def _end_transactions(self, error: Exception, hint: str) -> str:
        is_held_up = "transaction that is open at the source" in hint or DECIDE_PREPARED in hint
        return self._player.end_sessions() if is_held_up else ""

    def _without(self, error: Exception, hint: str) -> str:
        """Green without some tables, then with them again."""
        found = re.search(r"Leave ([\w., ]+?) out with an exclude pattern until", hint)
        if found is None:
            return ""
        given = self._player.rig.config.tables
        names = tuple(re.findall(r"\w+\.\w+", found.group(1)))
        self._player.configure({"tables": replace(given, exclude=(*given.exclude, *names))})
        self.done.append(found.group(0))
        while True:
            try:
                self._player.run_once()
                break
            except RED as failure:
                self.follow(failure)
        self._player.configure({"tables": given})
        return f"green without {', '.join(names)}"

    def _former(self) -> str:
        """One run as before, then the change again."""
        given = self._player.rig.config
        before = {"channels": self._player.trial.parameters["channels"], "partitioner": "key"}
        for step in self._player.past[:-1]:
            if step.do == "parameters" and any(given_ != step.options.get(n) for n, given_ in _routing(given).items()):
                before |= {name: value for name, value in step.options.items() if name in before}
        for channels in dict.fromkeys((before["channels"], self._player.trial.parameters["channels"])):
            self._player.configure({"channels": channels, "partitioner": "key"})
            try:
                self._player.run_once()
                break
            except RED as error:
                self._player.say(f"    with the former parameters: {error}")
        self._player.configure(_routing(given))
        return "ran with the former parameters"

    def _change(self, error: Exception, hint: str) -> str:
        """A person changes the target's table as the source's was: with the statements that he ran there. What a green
        run has passed he repeats only where nothing else is meant: its table may not have been told since.
        """
        if not is_by_hand(hint):
            return ""
        told, past, green_at = str(error), self._player.past, self._player.green_at
        new = [step for place, step in enumerate(past) if place >= green_at or step.is_at_target]
        statements = repeated(new, told) or repeated(past, told)
        if self._by_hand.issuperset(statements):
            return ""
        self._by_hand.update(statements)
        return self._execute(Side.TARGET, statements)

    def _made_first(self, told: str) -> str:
        """A person makes what the target lacks as he made it at the source, where that could not be told."""
        lacking = _LACKING.search(told)
        if lacking is None:
            return ""
        made = re.compile(rf"CREATE\b[^(;]*\b{lacking.group(1)}\b")
        return self._execute(
            Side.TARGET, [one for step in self._player.past for one in step.by_hand if made.match(one)]
        )

    def _passing_over(self, error: Exception, hint: str) -> str:
        """One run up to an LSN that passes over the DDL before it."""
        found = _SKIPS.search(hint)
        if found is None or _AS_IT_IS in hint[: found.start()]:
            return ""
        return self._skipped(found)

    def _taken_as_done(self, found: re.Match[str]) -> str:
        if found.group(1) is not None:
            return self._skipped(found)
        self._player.vouch(self.done)
        return "ddl=skip, for what was done by hand"

    def _skipped(self, found: re.Match[str]) -> str:
        if beside := _SENT.search(self._last):
            sent = re.split(r"; (?=SET LOCAL|ALTER|CREATE|DROP|COMMENT|TRUNCATE)", beside["texts"])
            copied = re.findall(r"--table \w+\.(\w+)", "; ".join(one for one in self.done if " recopy " in one))
            left = [one for one in sent if one not in self._by_hand and not any(named(table, one) for table in copied)]
            self._execute(Side.TARGET, left)
        self.done.append(found.group(0))
        given = self._player.rig.config.ddl
        self._player.vouch(self.done)
        try:
            self._player.run_once(until=found.group(1))
        except RED as failure:
            self._player.say(f"    {found.group(0)}: {failure}")
        self._player.configure({"ddl": given})
        return found.group(0)

    def _anew(self, error: Exception, hint: str) -> str:
        if not re.search(r"(?i)anew: |start (it |the pipeline )?anew|parallel-apply drop|slot of its own", hint):
            return ""
        player = self._player
        self.done.append("started anew")
        dropped = self.command("parallel-apply drop --force --log")
        owner = player.rig_of_owner
        for side, statement in re.findall(r"^ +(source|target): (.+)$", dropped, re.MULTILINE):
            self._execute(Side(side), [statement])
        tables = owner.rows(
            "SELECT format('DROP TABLE %I.%I CASCADE', schemaname, tablename) FROM pg_tables "
            "WHERE schemaname IN ('public', 'shop', 'moved')"
        )
        for (statement,) in tables:
            execute(owner.target_dsn, statement.replace("DROP TABLE", "DROP TABLE IF EXISTS"))
        player.begin_anew()
        player.configure({"start": Start.COPY, "create_tables": True})
        return f"started anew: {dropped}"

    def _again(self, error: Exception, hint: str) -> str:
        if re.search(r"(?i)tried again|by itself|clear |wait for|staged again|run it from", hint):
            execute(self._player.ledger_dsn, LAPSE)
            return "again"
        return ""


def _routing(config: Any) -> dict[str, Any]:
    return {"channels": config.channels, "partitioner": config.partitioner}


LAPSE: Final = (
    "DO $$ BEGIN IF to_regclass('parallel_apply.pipeline') IS NOT NULL THEN UPDATE parallel_apply.pipeline "
    "SET lease_until = now() - interval '1 second' WHERE owner IS NOT NULL; END IF; END $$"
)
"""A lease is over without the wait: its time is moved, as a stand-still of two minutes would."""
