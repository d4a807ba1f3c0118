"""Steps of those who operate a pipeline: parameters, bounds, intervals, runs that begin again; the log's directory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from airflow_parallel_apply.pipeline.admin.purge import purge_log
from airflow_parallel_apply.pipeline.config import Consistency, EpochProtocol, StoreName
from airflow_parallel_apply.pipeline.model.interval import Interval
from tests.hunt.hints import LAPSE
from tests.hunt.photographs import Photographs
from tests.hunt.step import Step
from tests.hunt.verdicts import RED, Caught
from tests.support.rig import Rig, execute

if TYPE_CHECKING:
    from tests.hunt.player import Player

_WORDS: Final = {"consistency": Consistency, "epoch_protocol": EpochProtocol, "store": StoreName}
"""Parameters whose values are words of the product's."""


class Operations:
    """The runs among them may be red in any way: only the next undisturbed run is judged."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._until = ""
        self._photographs = Photographs(player)
        self._former_log = ""
        self._moments: list[datetime] = []
        self._number = 0

    @property
    def _rig(self) -> Rig:
        return self._player.rig

    def _run_id(self) -> str:
        self._number += 1
        return f"disturbed {self._number}"

    def _tried(self, what: Callable[[], Any]) -> Any:
        """None, where it was red."""
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
        self._player.configure(
            {name: _WORDS[name](value) if name in _WORDS else value for name, value in step.options.items()}
        )

    def _leave_out(self, step: Step) -> None:
        """Exclude a table."""
        given, path = self._rig.config.tables, str(step.options["table"])
        self._player.configure({"tables": replace(given, exclude=(*given.exclude, path))})

    def _take_in(self, step: Step) -> None:
        given, path = self._rig.config.tables, str(step.options["table"])
        self._player.configure({"tables": replace(given, exclude=tuple(set(given.exclude) - {path}))})

    def _lapse(self, step: Step) -> None:
        execute(self._player.ledger_dsn, LAPSE)

    def _again(self, step: Step) -> None:
        """A run is cleared: it begins again under its name."""
        is_judged = step.options["of"] == "judged"
        run_id = self._player.run_id if is_judged else f"disturbed {self._number}"
        self._tried(lambda: self._rig.run(run_id))

    def _moment(self, step: Step) -> None:
        self._photographs.take(f"moment_{len(self._moments)}")
        ((now,),) = self._rig.rows("SELECT clock_timestamp()", side="source")
        self._moments.append(now)

    def _interval(self, step: Step) -> None:
        """A scheduled run, for the time between two moments."""
        number = int(step.options["number"])
        bounds = self._moments[number:][:2]
        if len(bounds) == 2:
            run_id, interval = self._run_id(), Interval(start=bounds[0], end=bounds[1])
            if self._tried(lambda: self._rig.run(run_id, interval=interval)) is not None:
                self._photographs.compare(f"moment_{number + 1}")

    def _keep_log(self, step: Step) -> None:
        shutil.copytree(self._rig.config.log_url, self._kept_log, dirs_exist_ok=True)

    def _lose_log(self, step: Step) -> None:
        """The directory, a file of it, some of its bytes, or what came since it was kept."""
        directory, what = Path(self._rig.config.log_url), step.options["what"]
        files = sorted(path for path in directory.rglob("*") if path.is_file() and path.stat().st_size)
        if what in ("remove", "restore"):
            shutil.rmtree(directory, ignore_errors=True)
            if what == "restore" and self._kept_log.exists():
                shutil.copytree(self._kept_log, directory)
        elif files:
            file = files[int(step.options["file"]) % len(files)]
            if what == "damage":
                content = bytearray(file.read_bytes())
                content[len(content) // 2] ^= 0x55
                file.unlink()
                file.write_bytes(bytes(content))
            else:
                file.unlink()

    def _move_log(self, step: Step) -> None:
        """To another place, or a copy of it; or the pipeline goes back to where its log was before."""
        former = Path(self._rig.config.log_url)
        if step.options["how"] == "back":
            self._player.configure({"log_url": self._former_log or str(former)})
            return
        self._former_log = str(former)
        self._player.next_log()
        if former.exists():
            shutil.copytree(former, self._rig.config.log_url)
            if step.options["how"] == "move":
                shutil.rmtree(former)

    @property
    def _kept_log(self) -> Path:
        return self._player.world.directory / "log.kept"

    def _purge(self, step: Step) -> None:
        self._tried(lambda: purge_log(self._rig.config.log_url, [rig.target for rig in self._player.rigs]))

    def _whole(self, step: Step) -> None:
        """All rows of a table that each transaction changes whole are those of one transaction."""
        if self._rig.config.consistency is Consistency.EPOCH:
            # Shrinking may have left out what makes the table.
            with suppress(psycopg.errors.UndefinedTable):
                rows = self._player.rig_of_owner.rows(f"SELECT DISTINCT v FROM {step.options['table']}")
                if len(rows) > 1:
                    raise Caught("a transaction is seen in part", f"{step}: {rows}")

    def _bound(self, step: Step) -> None:
        """`judged`: the source is photographed, to be compared with what a run makes of it that ends here."""
        if step.options.get("judged"):
            self._photographs.take("bound")
        self._until = self._player.now()

    def _bounded(self, step: Step) -> None:
        if not self._until:
            return
        run_id = self._run_id()
        if self._tried(lambda: self._rig.run(run_id, until=self._until)) is not None:
            self._photographs.compare("bound")
