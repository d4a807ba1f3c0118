"""Steps that disturb a run: killed and sleeping lanes, abandoned runs, full disks, cut networks, crashes, restores."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import psycopg

from airflow_parallel_apply.pipeline import run
from airflow_parallel_apply.pipeline.epoch import StagedUnit, Unit
from airflow_parallel_apply.router.plan import plan
from tests.hunt.events import PLACES
from tests.hunt.hints import LAPSE
from tests.hunt.proxy import Proxy
from tests.hunt.step import Step
from tests.support.local_stage import LocalStage
from tests.support.rig import Rig, execute
from tests.support.step_process import Fault, Order
from tests.support.steps import StepProcess, Steps

if TYPE_CHECKING:
    from tests.hunt.player import Player

_PACKAGE = "airflow_parallel_apply"


class Disturbances:
    """What they do may be red in any way: only the next undisturbed run is judged."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._steps: Steps | None = None
        self._opened: run.OpenedRun | None = None
        self._abandoned: Rig | None = None
        self._sleeping: StepProcess | None = None
        self._number = 0

    def perform(self, step: Step) -> None:
        """One step, by its name."""
        getattr(self, "_" + step.do.replace(" ", "_"))(step)

    def close(self) -> None:
        """End processes that are left."""
        if self._steps is not None:
            self._steps.__exit__(None, None, None)

    @property
    def _rig(self) -> Rig:
        return self._player.rig

    def _tried(self, what: Callable[[], Any]) -> Any:
        """None, where it was red."""
        from tests.hunt.player import RED, Caught

        try:
            return what()
        except RED as error:
            self._player.say(f"    disturbed: {error}")
        except (psycopg.Error, OSError) as error:
            self._player.say(f"    disturbed: {type(error).__name__} {error}")
        except Exception as error:
            raise Caught("an error outside the tree", f"{type(error).__name__}: {error}") from error
        return None

    def _parameters(self, step: Step) -> None:
        self._player.configure(dict(step.options))

    def _crash(self, step: Step) -> None:
        self._player.world.crash(str(step.options["side"]))

    def _keep(self, step: Step) -> None:
        self._player.world.keep(str(step.options["side"]))

    def _restore(self, step: Step) -> None:
        self._player.world.restore(str(step.options["side"]))

    def _lapse(self, step: Step) -> None:
        execute(self._player.rig_of_owner.target_dsn, LAPSE)

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
            self._lanes(self._abandoned, self._opened, 1000)

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
        """A lane as a process, killed or put to sleep at one place; a sleeper wakes when the next run is over."""
        rig, run_id = self._rig, self._run_id()
        self._tried(lambda: rig.capture(run_id))
        self._tried(lambda: plan(rig.config, rig.target))
        opened = self._tried(lambda: rig.open(run_id))
        if opened is None:
            return
        at, when, call = PLACES[str(step.options["place"])]
        number = signal.SIGSTOP if step.options["signal"] == "STOP" else signal.SIGKILL
        fault = Fault(at=f"{_PACKAGE}.{at}", when=when, call=call, signal=number)  # type: ignore[arg-type]
        if self._steps is None:
            directory = self._player.world.directory / f"steps{os.getpid()}"
            directory.mkdir(exist_ok=True)
            self._steps = Steps(directory)
        lane = self._steps.start(
            Order(
                step="lane", config=rig.config, source_dsn=rig.source_dsn, target_dsn=rig.target_dsn,
                queue_dsn=None if rig.queue is None else rig.queue.dsn, run_id=run_id, opened=opened, fault=fault,
            )
        )  # fmt: skip
        if number == signal.SIGKILL:
            lane.wait()
        else:
            try:
                lane.wait_stopped()
            except (AssertionError, OSError):
                return
            self._lapse(step)
            self._tried(self._player.run_once)
            lane.signal(signal.SIGCONT)
            lane.wait()
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
            self._player.rig = replace(rig, **{f"{side}_dsn": cut})
            try:
                self._tried(self._player.run_once)
            finally:
                self._player.rig = rig
        self._lapse(step)

    def _run_id(self) -> str:
        self._number += 1
        return f"disturbed {self._number}"


class _Counting(LocalStage):
    """Says how many units were staged."""

    def __init__(self, rig: Rig, staged: list[int]) -> None:
        super().__init__(rig.config.log_url, rig.target)
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
