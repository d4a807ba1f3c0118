"""The record of a hunt, in a file: seeds and findings, so that it goes on where it was."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.hunt.hunter import Outcome
from tests.hunt.step import Trial


@dataclass(kw_only=True)
class State:
    """Counts of all that was played; findings by what they have in common."""

    path: Path
    seed: int
    done: int = 0
    green: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    red: Counter[str] = field(default_factory=Counter)
    followed: Counter[str] = field(default_factory=Counter)
    findings: list[dict[str, Any]] = field(default_factory=list)
    """Each with its signature, the exotic kinds that it takes, and the trials that met it."""

    @classmethod
    def load(cls, path: Path, seed: int | None) -> State | None:
        """None where there is none of that seed."""
        if not path.exists():
            return None
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if seed not in (None, found["seed"]):
            return None
        counts = {name: Counter(found.pop(name)) for name in ("kinds", "red", "followed")}
        return cls(path=path, **counts, **found)

    def count(self, trial: Trial, outcome: Outcome) -> None:
        self.done += 1
        self.green += outcome.tally.green
        self.kinds.update(kinds(trial))
        self.red.update(outcome.tally.red)
        self.followed.update(how.split(":")[0][:60] for how in outcome.tally.followed)

    def known(self, trial: Trial, outcome: Outcome) -> dict[str, Any] | None:
        """The finding that this probably is again: what it takes is in the trial, and the same was seen."""
        kinds = exotic(trial)
        for finding in self.findings:
            if finding["signature"] == signature(outcome) and set(finding["takes"]) <= kinds:
                return finding
        return None

    def add(self, small: Trial, outcome: Outcome, script: Path) -> None:
        """A new one; the trial is counted where it was met."""
        found = {"signature": signature(outcome), "takes": sorted(exotic(small)), "what": outcome.what[:1000]}
        self.findings.append({**found, "script": str(script), "trials": [small.seed]})

    def save(self) -> None:
        """Aside, then renamed: a hunt that is killed leaves the state of before."""
        kept = {name: getattr(self, name) for name in ("seed", "done", "green", "kinds", "red", "followed", "findings")}
        aside = self.path.with_suffix(".new")
        aside.write_text(json.dumps(kept, indent=1, ensure_ascii=False), encoding="utf-8")
        aside.replace(self.path)

    def report(self) -> str:
        """For people: what was exercised, what came of it."""
        lines = [f"\n{self.done} trials of HUNT_SEED={self.seed}, {self.green} runs green, {self.red.total()} red"]
        for title, counts in (("exercised", self.kinds), ("red", self.red), ("followed", self.followed)):
            lines += [f"\n{title}:", *(f"{count:6}  {name}" for name, count in counts.most_common())]
        lines += ["\nfindings:" if self.findings else "\nno findings"]
        for finding in self.findings:
            takes = ", ".join(finding["takes"]) or "rows alone"
            lines += [
                f"{len(finding['trials']):6}  {takes}: {finding['signature']}",
                f"        HUNT_STEPS={finding['script']}",
            ]
        return "\n".join(lines)


def kinds(trial: Trial) -> set[str]:
    """Kinds that it exercises, and the places."""
    during = {f"{step.options['of']}: {step.options['place']}" for step in trial.steps if "place" in step.options}
    return {step.kind for step in trial.steps} - {"rows"} | during


def exotic(trial: Trial) -> set[str]:
    """Kinds of steps that are no ordinary workload, whether they were told to the pipeline or not."""
    return {step.kind.removesuffix(", told") for step in trial.steps} - {"rows"}


def signature(outcome: Outcome) -> str:
    """A finding without names and numbers: two with the same one are probably one."""
    what = re.sub(r"Hint:.*|\[op.*", "", outcome.what.partition("(expected")[0])
    what = re.sub(r"'[^']*'|\"[^\"]*\"|\([^)]*\)", "…", what)
    return f"{outcome.kind}: {re.sub(r'[a-z]*[0-9]+[a-z0-9_]*', 'n', what)[:90]}"
