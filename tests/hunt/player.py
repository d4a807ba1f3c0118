"""Plays a trial's steps, judges each run by the oracle, and follows the hints of red ones."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import psycopg

from airflow_parallel_apply.pipeline.apply import capture_turn
from airflow_parallel_apply.pipeline.check import check_pipeline
from airflow_parallel_apply.pipeline.config import DdlPolicy
from airflow_parallel_apply.pipeline.errors import LeaseBusy
from airflow_parallel_apply.pipeline.model.finding import errors
from airflow_parallel_apply.pipeline.run import preparing
from tests.hunt.by_hand import named
from tests.hunt.disturb import Disturbances
from tests.hunt.hints import Follower
from tests.hunt.kept import Kept
from tests.hunt.oracle import differences, tell_definitions
from tests.hunt.rigs import SCHEMAS, rig_of, second_rig_of
from tests.hunt.statements import LOCK_TIMEOUT, patient, run_each
from tests.hunt.step import Step, Trial
from tests.hunt.targets.hints import FollowerElsewhere
from tests.hunt.targets.open import POSTGRES
from tests.hunt.verdicts import RED, Caught, Tally, stem
from tests.hunt.world import World
from tests.support.rig import Rig, execute

_TRIES: Final = 14
_ROUNDS: Final = 4
"""How often tables are looked at, each time behind what was proposed."""


class Player:
    """One trial in one world. `play` raises `Caught`."""

    def __init__(self, world: World, trial: Trial, say: Callable[[str], None] = lambda line: None) -> None:
        self.world = world
        self.trial = trial
        self.tally = Tally()
        self.past: list[Step] = []
        self.say = say
        self._touched: set[str] = set()
        self._sessions: dict[str, psycopg.Connection[Any]] = {}
        self._number = 0
        self._log = 0
        kind = str(trial.parameters.get("target", POSTGRES))
        self.hunted = None if kind == POSTGRES else world.hunted(kind)
        """The target, where it is of another kind: the server is the ledger's then."""
        self.rig = rig_of(world, trial, self.hunted)
        self._kept = Kept()
        self.green_at = 0
        """How many of the steps lay before the last green run."""
        self._database = "hunt"
        self._other: tuple[Any, ...] = ()
        """The same four of another pipeline of the log, which `_second` exchanges for these."""

    def play(self) -> Tally:
        """Errors: `Caught`; whatever else is the hunt's own mistake."""
        self.world.fresh()
        if self.hunted is not None:
            self.hunted.fresh()
            self.follow_target()
        preparing.FIRST_CAPTURE_CHANGES = self.trial.parameters.get("step_changes", 200_000)  # type: ignore[misc]
        capture_turn.STEP_CHANGES = preparing.FIRST_CAPTURE_CHANGES  # type: ignore[misc]
        if "second" in self.trial.parameters:
            self._other = (second_rig_of(self.rig, self.trial, self.world.second()), Kept(), 0, "second")
        disturbances = Disturbances(self)
        try:
            for number, step in enumerate(self.trial.steps):
                self.past.append(step)
                self.say(f"  {number}: {step}")
                if step.do == "run":
                    until = self.now() if step.options.get("bound") == "now" else ""
                    self.judged_run(strict=self._is_last(number), until=until)
                elif step.do == "second":
                    self._second(strict=self._is_last(number))
                elif step.do in ("source", "touch", "transaction", "session", "both", "target", "tables"):
                    getattr(self, f"_{step.do}")(step)
                else:
                    disturbances.perform(step)
        finally:
            disturbances.close()
            self.end_sessions()
        return self.tally

    def judged_run(self, *, strict: bool, is_told: bool = False, until: str = "") -> None:
        """Green implies equal; red names its cause, and following its hints ends green and equal.

        A definition travels with the next row: where the two sides differ, a row of each table is written once more.
        `until`: a bound that everything lies before so far.
        """
        follower = Follower(self) if self.hunted is None else FollowerElsewhere(self, self.hunted)
        ddl = self.rig.config.ddl
        for _ in range(_TRIES):
            try:
                self.run_once(until=until)
            except RED as error:
                told, until = str(error), ""
                self.say(f"    red: {told}")
                self.tally.red.append(stem(told))
                if not isinstance(error, LeaseBusy):
                    self._require_named(told)
                self.tally.followed.append(follower.follow(error))
                continue
            except Exception as error:
                raise Caught("an error outside the tree", f"{type(error).__name__}: {error}") from error
            self.tally.green += 1
            self.configure({"ddl": ddl})
            is_known = (
                strict or is_told or (self.green_at and all(one.is_of_rows for one in self.past[self.green_at :]))
            )
            if not is_known and (found := self._differences(strict=False)):
                self._require_no_more(found)
                self.say("    differs: a row of each table tells its definition")
                tell_definitions(self.rig_of_judge.source_dsn, SCHEMAS)
                self.judged_run(strict=False, is_told=True)
                return
            self.require_equal(strict=strict, followed=follower.done)
            self.green_at = len(self.past)
            return
        raise Caught("hints lead nowhere", told)

    def _require_no_more(self, found: list[str]) -> None:
        """A green run leaves nothing to do for another one behind it, while nobody writes."""
        with suppress(*RED):
            self.run_once()
            if self._differences(strict=False) != found:
                raise Caught("green and different", f"until the next run: {' | '.join(found)}")

    def run_once(self, *, until: str = "") -> None:
        self._number += 1
        self.rig.run(self.run_id, until=until)

    @property
    def run_id(self) -> str:
        """That of the last such run."""
        return f"run {self._number}"

    def now(self) -> str:
        """The end of the source's WAL."""
        return str(self.rig.rows("SELECT pg_current_wal_insert_lsn()", side="source")[0][0])

    def require_equal(self, *, strict: bool, followed: list[str]) -> None:
        known = self._touched if strict else set()
        if found := self._differences(strict=strict):
            kind = "green and different" + (" after its hints were followed" if followed else "")
            raise Caught(kind, " | ".join([*found, *(f"followed: {one}" for one in followed)]))
        if self.hunted is not None:
            return
        comparison = self.rig_of_judge.comparison()
        # A table without rows need not be there, nor a column that no row has told of.
        unequal = [str(table) for table in comparison.tables if not table.equal and table.name in known]
        if unequal:
            raise Caught("compare sees a difference that is none", " | ".join(unequal))

    def _differences(self, *, strict: bool) -> list[str]:
        if self.hunted is not None:
            return self.hunted.differences(self.rig)
        source, target = self.rig_of_judge.source_dsn, self.rig_of_judge.target_dsn
        known, tables = self._touched if strict else set(), self.rig.config.tables
        found = differences(source, target, SCHEMAS, known=known, but=tables.exclude)
        may_go = any("DROP" in text for step in self.past for text in (*step.sql, *step.by_hand))
        return [*found, *self._kept.differences(target, tables, may_go=may_go)]

    def begin_anew(self) -> None:
        """With a log that is not there yet, and that no other pipeline shares."""
        self._kept = Kept()
        self.next_log()
        if self._other:
            self.configure({"slot": f"parallel_apply_{self._log}"})

    def vouch(self, done: Collection[str]) -> None:
        """The next run takes definitions for done: at the target of another pipeline of the log this is done first."""
        self.configure({"ddl": DdlPolicy.SKIP})
        if self._other:
            at_target = (one.removeprefix("target: ") for one in done if one.startswith("target: "))
            run_each(self._other[0].target_dsn, tuple(one for one in at_target if " FAILED " not in one))

    def next_log(self) -> None:
        """The log is at another place from now on."""
        self._log += 1
        self.configure({"log_url": str(self.world.directory / f"log{self._log}")})

    @property
    def rigs(self) -> list[Rig]:
        """Those of all pipelines of the log, this one first."""
        return [self.rig, *self._other[:1]]

    @property
    def rig_of_owner(self) -> Rig:
        """As a superuser at the target."""
        return self.rig if self.hunted is not None else replace(self.rig, target_dsn=self.ledger_dsn)

    @property
    def rig_of_judge(self) -> Rig:
        """As a superuser at both sides."""
        return replace(self.rig_of_owner, source_dsn=self.world.servers["source"].dsn("hunt"))

    @property
    def ledger_dsn(self) -> str:
        """The database of the pipeline's ledger, as its owner: the target's, where that can hold one."""
        return self.world.servers["target"].dsn(self._database)

    def follow_target(self) -> None:
        """The target has another address."""
        if self.hunted is not None:
            self.rig = replace(self.rig, target_dsn=self.hunted.url)

    def crash(self, side: str) -> None:
        """A server of one side."""
        if side == "target" and self.hunted is not None:
            self.hunted.crash()
        else:
            self.world.crash(side)

    def keep(self, side: str) -> None:
        """Copy what a side holds."""
        if side == "target" and self.hunted is not None:
            self.hunted.keep()
        else:
            self.world.keep(side)

    def restore(self, side: str, *, promoted: bool) -> None:
        """Put back what was kept of a side."""
        if side == "target" and self.hunted is not None:
            self.hunted.restore()
        else:
            self.world.restore(side, promoted=promoted)
            self.look_again_at(side)

    def look_again_at(self, side: str) -> None:
        """A side is another state of itself."""
        if side == "target" and self.hunted is None:
            self._kept.look_again(self.rig_of_owner.target_dsn, self.rig.config.tables)

    def configure(self, changes: dict[str, Any]) -> None:
        self.rig = self.rig.having(**changes)
        if "tables" in changes and self.hunted is None:
            self._kept.follow(self.rig_of_owner.target_dsn, self.rig.config.tables)

    def _require_named(self, told: str) -> None:
        """By one of the exotic steps so far; a run that nothing exotic came before has no reason to be red."""
        exotic = [step for step in self.past if step.is_exotic]
        if not exotic:
            raise Caught("red without a cause", told)
        names = {name for step in exotic for name in step.names}
        if not any(named(name, told) for name in names):
            raise Caught("red that names something else", f"{told} (expected one of {sorted(names)})")

    def end_sessions(self) -> str:
        """Roll back what the trial's own sessions hold open, commit what they prepared; says how many."""
        ended = [connection for connection in self._sessions.values() if not connection.closed]
        for connection in ended:
            connection.close()
        with suppress(psycopg.Error), psycopg.connect(self.rig.source_dsn, autocommit=True) as connection:
            held = connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall()
            for (name,) in held:
                connection.execute(f"COMMIT PREPARED '{name}'")
        return f"ended {len(ended)} sessions, {len(held)} prepared transactions"

    def beside(self, step: Step) -> None:
        """A step while something else is under way; it waits longer for locks."""
        do = {"transaction": self._transaction, "target": self._target}.get(str(step.options["do"]), self._source)
        do(step, lock_timeout="20s")

    def _source(self, step: Step, lock_timeout: str = LOCK_TIMEOUT) -> None:
        run_each(self._source_dsn(step), step.sql, lock_timeout)

    def _source_dsn(self, step: Step) -> str:
        return self.world.servers["source"].dsn("hunt") if step.options.get("superuser") else self.rig.source_dsn

    def _touch(self, step: Step) -> None:
        """A row of a table's last definition: from here on the pipeline can know it, if one was written."""
        with psycopg.connect(self.rig.source_dsn, autocommit=True) as connection, suppress(psycopg.Error):
            if sum(patient(connection, statement) for statement in step.sql):
                self._touched.add(str(step.options["table"]))

    def _target(self, step: Step, lock_timeout: str = LOCK_TIMEOUT) -> None:
        if self.hunted is not None:
            self.hunted.run(step.sql)
            return
        run_each(self.rig_of_owner.target_dsn, step.sql, lock_timeout)
        for path in step.options.get("keeps", ()):
            self._kept.note(self.rig_of_owner.target_dsn, path, self.rig.config.tables)

    def _is_last(self, number: int) -> bool:
        """True if no later step does the same."""
        return all(step.do != self.trial.steps[number].do for step in self.trial.steps[number + 1 :])

    def _second(self, *, strict: bool) -> None:
        """A run of another pipeline of the log, judged as this one's are."""
        self._exchange()
        try:
            self.judged_run(strict=strict)
        finally:
            self._exchange()

    def _exchange(self) -> None:
        ours = self.rig, self._kept, self.green_at, self._database
        self.rig, self._kept, self.green_at, self._database = self._other
        self._other = ours

    def _both(self, step: Step) -> None:
        run_each(self.rig.source_dsn, step.sql)
        if self._other:
            run_each(self._other[0].target_dsn, step.sql)
        run_each(self.rig_of_owner.target_dsn, step.sql)
        grant = "GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA public TO plain"
        execute(self.rig_of_owner.target_dsn, grant)

    def _tables(self, step: Step) -> None:
        self.make_tables(step.options["may_refuse"])

    def make_tables(self, may_refuse: Collection[str]) -> None:
        """Make what `check` proposes for the target, and leave out the tables that it refuses, which have to be among
        `may_refuse`.
        """
        assert self.hunted is not None
        for _ in range(_ROUNDS):
            found = check_pipeline(self.rig.config, self.rig.source, self.rig.target, queue=self.rig.queue).findings
            wrong = [finding for finding in errors(found) if finding.is_table]
            if not wrong:
                return
            self.say(f"    made: {self.hunted.run([statement for finding in wrong for statement in finding.fix])}")
            refused = {finding.where for finding in wrong if not finding.fix}
            if not refused <= set(may_refuse):
                raise Caught("refused without a cause", " | ".join(map(str, wrong)))
            given = self.rig.config.tables
            self.configure({"tables": replace(given, exclude=(*given.exclude, *sorted(refused)))})
        raise Caught("a finding that its own commands do not mend", " | ".join(map(str, wrong)))

    def _transaction(self, step: Step, lock_timeout: str = LOCK_TIMEOUT) -> None:
        """Run the statements; one that fails is undone alone, and the others go on."""
        with suppress(psycopg.Error), psycopg.connect(self._source_dsn(step)) as connection:
            for statement in step.sql:
                with suppress(psycopg.Error), connection.transaction():
                    patient(connection, statement, lock_timeout)
            if step.options.get("rollback"):
                connection.rollback()

    def _session(self, step: Step) -> None:
        name = str(step.options["name"])
        if name not in self._sessions or self._sessions[name].closed:
            self._sessions[name] = psycopg.connect(self.rig.source_dsn, autocommit=True)
        for statement in step.sql:
            with suppress(psycopg.Error):
                patient(self._sessions[name], statement)
