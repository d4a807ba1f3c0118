"""Trials in a process of their own, which can be ended when one of them hangs, and starts with new servers then."""

from __future__ import annotations

import logging
import multiprocessing
import tempfile
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from tests.hunt.player import Player
from tests.hunt.step import Trial
from tests.hunt.verdicts import Caught, Tally
from tests.hunt.world import World

_LONGEST_SECONDS: Final = 480.0


@dataclass(kw_only=True)
class Outcome:
    """`kind` empty: nothing was found."""

    kind: str = ""
    what: str = ""
    tally: Tally = field(default_factory=Tally)


class Hunter:
    """One process, one world. Not thread-safe."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None
        self._pipe: Connection | None = None

    def play(self, trial: Trial, *, is_told: bool = False) -> Outcome:
        """Play it and return the outcome; a trial that does not end is a finding, too."""
        if self._process is None:
            self._pipe, other = self._context.Pipe()
            # Not a daemon: it starts servers and processes of its own.
            self._process = self._context.Process(target=_serve, args=(other,))
            self._process.start()
            other.close()
        assert self._pipe is not None
        try:
            self._pipe.send((trial, is_told))
            if self._pipe.poll(_LONGEST_SECONDS):
                outcome: Outcome = self._pipe.recv()
                if outcome.kind == "the hunt's own mistake":
                    self.close()
                return outcome
            outcome = Outcome(kind="does not end", what=f"after {_LONGEST_SECONDS:.0f} s")
        except (EOFError, OSError) as error:
            outcome = Outcome(kind="the process died", what=str(error))
        self._process.kill()
        self.close()
        return outcome

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(OSError):
                assert self._pipe is not None
                self._pipe.send(None)
            process.join(30)
            if process.exitcode is None:
                process.kill()
                process.join()


def _serve(pipe: Connection) -> None:
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="parallel-apply-hunt-", ignore_cleanup_errors=True) as directory:
        # The servers may run as another user.
        Path(directory).chmod(0o755)
        with World(Path(directory)) as world, suppress(EOFError):
            while (order := pipe.recv()) is not None:
                trial, is_told = order
                pipe.send(_played(world, trial, is_told=is_told))


def _played(world: World, trial: Trial, *, is_told: bool) -> Outcome:
    player: Player | None = None
    try:
        player = Player(world, trial, _tell if is_told else lambda line: None)
        return Outcome(tally=player.play())
    except Caught as caught:
        return Outcome(kind=caught.kind, what=caught.what, tally=player.tally if player else Tally())
    except Exception:  # noqa: BLE001  # told, with its trace
        return Outcome(kind="the hunt's own mistake", what=traceback.format_exc()[-2000:])


def _tell(line: str) -> None:
    print(line[:3000], flush=True)
