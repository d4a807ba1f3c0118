"""`make hunt`: trials until the time is up, each finding shrunk to a script; exit 1 when something was found.

Variables: HUNT_SECONDS (600), HUNT_SEED (random; the same one goes on where it was), HUNT_TRIAL (plays one trial and
tells it, or several), HUNT_STEPS (plays a script), HUNT_KINDS (exotic things by name, with commas),
HUNT_TARGET (postgres, files, delta, delta-feed, mariadb, kafka, or any: the target of new trials),
HUNT_TRIALS (ends after so many), HUNT_DIRECTORY (.hunt: state and scripts), HUNT_SHRINK_SECONDS (90).
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Final

from tests.hunt.hunter import Hunter
from tests.hunt.person import MISSING
from tests.hunt.shrink import script, shrink
from tests.hunt.state import State, signature
from tests.hunt.step import Trial
from tests.hunt.targets.open import POSTGRES, fresh_seed, is_able, named
from tests.hunt.trials import trial as trial_of

DIRECTORY: Final = ".hunt"


def main() -> int:
    """The exit status."""
    directory = Path(os.environ.get("HUNT_DIRECTORY") or DIRECTORY)
    directory.mkdir(parents=True, exist_ok=True)
    hunter = Hunter()
    try:
        if path := os.environ.get("HUNT_STEPS"):
            return _one(hunter, Trial.load(Path(path)))
        seconds = float(os.environ.get("HUNT_SECONDS") or 600)
        if seeds := os.environ.get("HUNT_TRIAL", "").split():
            return _listed(hunter, seeds, seconds)
        seed_given = int(os.environ["HUNT_SEED"]) if os.environ.get("HUNT_SEED") else None
        state = State.load(directory / "state.json", seed_given) if seed_given is not None else None
        state = state or State(path=directory / "state.json", seed=seed_given or random.SystemRandom().randrange(10**9))
        hunt(hunter, state, directory, seconds=seconds)
        print(state.report())
        return 1 if state.findings else 0
    finally:
        hunter.close()


def hunt(hunter: Hunter, state: State, directory: Path, *, seconds: float, say: Callable[[str], None] = print) -> None:
    """Trials of the state's seed, from where it stands."""
    until = monotonic() + seconds
    trials = int(os.environ.get("HUNT_TRIALS") or 10**9)
    target = os.environ.get("HUNT_TARGET") or POSTGRES
    shrinking = float(os.environ.get("HUNT_SHRINK_SECONDS") or 90)
    say(f"HUNT_SEED={state.seed} HUNT_TARGET={target} HUNT_SECONDS={seconds:.0f}, from trial {state.done}")
    while monotonic() < until and state.done < trials:
        trial = trial_of(fresh_seed(f"{state.seed}.{state.done}", target), _only())
        outcome = hunter.play(trial)
        if outcome.kind:
            say(f"HUNT_TRIAL={trial.seed}: {outcome.kind}: {outcome.what[:600]}")
            if known := state.known(trial, outcome):
                known["trials"].append(trial.seed)
            else:
                found = signature(outcome)
                seconds_left = 0.0 if outcome.kind == MISSING else shrinking
                small = shrink(trial, lambda one: signature(hunter.play(one)) == found, seconds=seconds_left)  # noqa: B023
                path = directory / f"finding-{state.seed}-{state.done}.json"
                small.save(path)
                state.add(small, outcome, path)
                say(f"shrunk, HUNT_STEPS={path}\n{script(small)}")
        state.count(trial, outcome)
        state.save()


def _only() -> tuple[str, ...]:
    return tuple(kind.strip() for kind in os.environ.get("HUNT_KINDS", "").split(",") if kind.strip())


def _listed(hunter: Hunter, seeds: list[str], seconds: float) -> int:
    """One is told step by step; several are played until the time is up."""
    until = monotonic() + seconds
    found = 0
    for seed in seeds:
        if not is_able(named(seed)):
            print(f"HUNT_TRIAL={seed} is left out: its target is not installed here")
        elif monotonic() < until:
            print(f"HUNT_TRIAL={seed}")
            found |= _one(hunter, trial_of(seed, _only()), is_told=len(seeds) == 1)
    return found


def _one(hunter: Hunter, trial: Trial, *, is_told: bool = True) -> int:
    outcome = hunter.play(trial, is_told=is_told)
    print(f"{outcome.kind}: {outcome.what}" if outcome.kind else "nothing was found")
    return 1 if outcome.kind else 0


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(main())
