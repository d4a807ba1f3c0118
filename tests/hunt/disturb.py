"""Steps that disturb a run: killed and sleeping lanes, abandoned runs, full disks, cut networks, crashes, restores;
copies made anew.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import psycopg

from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.apply import capture_turn
from airflow_parallel_apply.pipeline.copy.open import recopy_tables
from airflow_parallel_apply.pipeline.model.epoch import StagedUnit, Unit
from airflow_parallel_apply.router.plan import plan
from tests.hunt.meanwhile import PACKAGE, Died, arrived, unconfirmed
from tests.hunt.operations import Operations
from tests.hunt.proxy import Proxy
from tests.hunt.runs import PLACES
from tests.hunt.step import Step
from tests.support.local_stage import LocalStage
from tests.support.rig import Rig
from tests.support.step_process import Fault, Order
from tests.support.steps import StepProcess, Steps

if TYPE_CHECKING:
    from tests.hunt.player import Player


class Disturbances(Operations):
    """Disturbs runs, which may be red in any way: only the next undisturbed run is judged."""

    def __init__(self, player: Player) -> None:
        super().__init__(player)
        self._steps: Steps | None = None
        self._opened: run.OpenedRun | None = None
        self._abandoned: Rig | None = None
        self._sleeping: StepProcess | None = None

    def perform(self, step: Step) -> None:
        """One step, by its name."""
        getattr(self, "_" + step.do.replace(" ", "_"))(step)

    def close(self) -> None:
        """End processes that are left."""
        if self._steps is not None:
            self._steps.__exit__(None, None, None)

    def _end_branches(self, step: Step) -> None:
        """Some of those that are prepared at the target, as a person ends them."""
        with psycopg.connect(self._player.ledger_dsn, autocommit=True) as connection:
            query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid LIMIT %s"
            for (name,) in connection.execute(query, [step.options["count"]]).fetchall():
                connection.execute(f"{step.options['how']} PREPARED '{name}'")

    def _crash(self, step: Step) -> None:
        self._player.crash(str(step.options["side"]))

    def _keep(self, step: Step) -> None:
        self._player.keep(str(step.options["side"]))

    def _restore(self, step: Step) -> None:
        self._player.restore(str(step.options["side"]), promoted=bool(step.options.get("promoted")))

    def _dump(self, step: Step) -> None:
        self._player.world.dump(str(step.options["side"]))

    def _load(self, step: Step) -> None:
        self._player.world.load(str(step.options["side"]))
        self._player.look_again_at(str(step.options["side"]))

    def _promote(self, step: Step) -> None:
        self._player.world.promote(str(step.options["side"]))

    def _recopy(self, step: Step) -> None:
        """As `parallel-apply recopy` does it."""
        tables = step.options.get("tables") or [step.options["table"]]
        names = [(schema, name) for schema, _, name in (str(table).partition(".") for table in tables)]
        rig = self._rig
        self._tried(lambda: recopy_tables(rig.config, rig.source, rig.target, names, report=lambda progress: None))

    def _meanwhile(self, step: Step) -> None:
        """A run, or a copy, and what is done while it is at a place."""
        options, do = step.options, str(step.options["do"])
        doing: dict[str, Callable[[], None]] = {
            "source": lambda: self._player.beside(step),
            "transaction": lambda: self._player.beside(step),
            "target": lambda: self._player.beside(step),
            "run": lambda: self._tried_beside(self._player.run_once),
            "recopy": lambda: self._tried_beside(lambda: self._recopy(step)),
            "crash": lambda: self._crash(step),
            "lapse": lambda: self._lapse(step),
            "die": self._die,
        }
        is_beside = do in ("source", "transaction", "target", "run", "recopy")
        with suppress(Died), arrived(str(options["place"]), int(options["call"]), doing[do], is_beside=is_beside):
            if options["of"] == "run":
                self._tried(self._player.run_once)
            else:
                self._recopy(step)
        self._lapse(step)

    def _unconfirmed(self, step: Step) -> None:
        """A run goes by while a transaction waits for its standby."""
        commit = replace(step, options={"do": "transaction"})
        server = self._player.world.servers["source"].dsn()
        with unconfirmed(server, lambda: self._player.beside(commit)):
            self._tried(self._player.run_once)
        self._lapse(step)

    def _die(self) -> None:
        raise Died

    def _tried_beside(self, what: Callable[[], Any]) -> None:
        """In a thread, whose findings nobody would see: told, and left to the next judged run."""
        try:
            self._tried(what)
        except Exception as error:  # noqa: BLE001  # a thread of the hunt
            self._player.say(f"    beside: {error}")

    def _prepare(self, step: Step) -> None:
        self._tried(self._rig.prepare)

    def _plan(self, step: Step) -> None:
        self._tried(lambda: plan(self._rig.config, self._rig.target))

    def _capture(self, step: Step) -> None:
        self._tried(lambda: self._rig.capture(self._run_id()))

    def _open(self, step: Step) -> None:
        """A run that is opened and then waits for its lanes."""
        self._tried(lambda: self._rig.capture("waiting"))
        self._tried(lambda: self._rig.open("waiting"))

    def _abandon(self, step: Step) -> None:
        """Opened, applied up to so many units, left there."""
        rig, run_id = self._rig, self._run_id()
        self._tried(lambda: rig.capture(run_id))
        self._tried(lambda: plan(rig.config, rig.target))
        self._opened = self._tried(lambda: rig.open(run_id))
        if self._opened is not None:
            self._abandoned = rig
            self._lanes(rig, self._opened, int(step.options["units"]))

    def _wake(self, step: Step) -> None:
        """A lane of the abandoned run goes on as if nothing had happened."""
        if self._opened is not None and self._abandoned is not None:
            self._lanes(self._abandoned, self._opened, int(step.options.get("units", 1000)))

    def _stopped(self, step: Step) -> None:
        """A stop after so many units."""
        rig, run_id = self._rig, self._run_id()
        self._tried(lambda: rig.capture(run_id))
        self._tried(lambda: plan(rig.config, rig.target))
        opened = self._tried(lambda: rig.open(run_id))
        if opened is None:
            return
        staged: list[int] = []
        counting = replace(rig, stage=lambda opened: _Counting(rig, staged))
        wanted = int(step.options["units"])
        reports = self._tried(lambda: counting.apply(opened, stop_requested=lambda: len(staged) >= wanted))
        self._tried(lambda: rig.close(opened, reports or ()))

    def _lanes(self, rig: Rig, opened: run.OpenedRun, units: int) -> None:
        staged: list[int] = []
        counting = replace(rig, stage=lambda opened: _Counting(rig, staged))
        self._tried(lambda: counting.apply(opened, lanes=1, cancelled=lambda: len(staged) > units))

    def _killed(self, step: Step) -> None:
        """A lane or a capture as a process, killed or put to sleep at one place or line; a sleeper wakes when the next
        run is over.
        """
        rig, run_id, of = self._rig, self._run_id(), str(step.options["of"])
        opened = None
        if of == "lane":
            self._tried(lambda: rig.capture(run_id))
            self._tried(lambda: plan(rig.config, rig.target))
            opened = self._tried(lambda: rig.open(run_id))
            if opened is None:
                return
        number = signal.SIGSTOP if step.options["signal"] == "STOP" else signal.SIGKILL
        if "line" in step.options:
            fault = Fault(line=int(step.options["line"]), signal=number)
        else:
            at, when = PLACES[str(step.options["place"])]
            fault = Fault(at=f"{PACKAGE}.{at}", when=when, signal=number, call=int(step.options["call"]))
        if self._steps is None:
            directory = self._player.world.directory / f"steps{os.getpid()}"
            directory.mkdir(exist_ok=True)
            self._steps = Steps(directory)
        process = self._steps.start(
            Order(
                step="lane" if of == "lane" else "capture",
                config=rig.config, run_id=run_id, opened=opened, fault=fault,
                source_dsn=rig.source_dsn, target_dsn=rig.target_dsn, step_changes=capture_turn.STEP_CHANGES,
                queue_dsn=None if rig.queue is None else rig.queue.dsn, ledger_dsn=rig.ledger_dsn,
            )
        )  # fmt: skip
        if number == signal.SIGKILL:
            process.wait()
        else:
            try:
                process.wait_stopped()
            except (AssertionError, OSError):
                return
            self._lapse(step)
            self._tried(self._player.run_once)
            process.signal(signal.SIGCONT)
            process.wait()
        self._lapse(step)

    def _full_disk(self, step: Step) -> None:
        """The log's files cannot be written from some call on."""
        with _failing(str(step.options["call"]), int(step.options["after"])):
            self._tried(self._player.run_once)
        self._lapse(step)

    def _cut(self, step: Step) -> None:
        """Every connection to one side ends after so many bytes; then it can be reached again."""
        side = str(step.options["side"])
        with Proxy(self._player.world.servers[side].port, int(step.options["after_bytes"])) as proxy:
            rig = self._rig
            dsn = {"source": rig.source_dsn, "target": rig.target_dsn}[side]
            cut = psycopg.conninfo.make_conninfo(dsn, port=proxy.port)
            self._player.rig = replace(rig, **{f"{side}_dsn": cut})  # type: ignore[arg-type]
            try:
                self._tried(self._player.run_once)
            finally:
                self._player.rig = rig
        self._lapse(step)


class _Counting(LocalStage):
    """Says how many units were staged."""

    def __init__(self, rig: Rig, staged: list[int]) -> None:
        super().__init__(rig.config.log_url, rig.target, config=rig.config)
        self._staged = staged

    def stage(self, unit: Unit) -> StagedUnit:
        self._staged.append(unit.last_seqno)
        return super().stage(unit)


@contextmanager
def _failing(call: str, after: int) -> Iterator[None]:
    """`os.link`, `os.fsync` or the opening of a file to write fails as on a full disk, `after` calls later."""
    original = getattr(os, call)
    calls = 0

    def failing(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        if call == "open" and not (len(arguments) > 1 and arguments[1] & (os.O_WRONLY | os.O_RDWR)):
            return original(*arguments, **named)
        calls += 1
        if calls > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*arguments, **named)

    with mock.patch.object(os, call, failing):
        yield
