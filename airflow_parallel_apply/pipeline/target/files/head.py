"""The head of a directory: whose it is, how far its channels are, and who may move them. Each manifest has it whole.

The exclusive create of the next manifest is a compare-and-swap of the head: whoever writes one has read the one before.
So a commit of a former generation or claim is refused by the directory itself, wherever and whenever it comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from airflow_parallel_apply.pipeline.encode.files.manifest import FileManifest
from airflow_parallel_apply.pipeline.errors import EncodeError, OwnershipLost
from airflow_parallel_apply.pipeline.model.epoch import Branch, Unit
from airflow_parallel_apply.pipeline.model.position import Position

_KEY: Final = "pipeline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """`ledger`: the database that keeps the pipeline's ledger. `parts`: who stages which part of which group, by
    `<group>/<channel>`; what anybody else staged for it does not count. `swept`: when orphans were last looked for, as
    ISO 8601. An empty `pipeline`: nobody's.
    """

    pipeline: str = ""
    log_id: str = ""
    ledger: str = ""
    routing_digest: str = ""
    generation: int = 0
    positions: tuple[Position, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)
    swept: str = ""

    @classmethod
    def of(cls, manifest: FileManifest | None) -> Head:
        """The head that a manifest has. Errors: `EncodeError` where the directory is an export's."""
        if manifest is None:
            return cls()
        kept = manifest.state.get(_KEY)
        if kept is None:
            raise EncodeError(
                "the directory has the files of an export, and no pipeline can go on with them",
                op="open",
                hint="Give the pipeline a directory of its own.",
            )
        return cls(
            pipeline=kept["name"],
            log_id=manifest.log_id,
            ledger=kept["ledger"],
            routing_digest=kept["routing_digest"],
            generation=kept["generation"],
            positions=tuple(
                Position(channel=channel, seqno=manifest.positions[str(channel)], generation=generation, claim=claim)
                for channel, (generation, claim) in enumerate(kept["channels"])
            ),
            parts=kept["parts"],
            swept=kept["swept"],
        )

    def state(self) -> dict[str, Any]:
        """The values that a manifest keeps beside its positions: inverse of `of`."""
        return {
            _KEY: {
                "name": self.pipeline,
                "ledger": self.ledger,
                "routing_digest": self.routing_digest,
                "generation": self.generation,
                "channels": [[at.generation, at.claim] for at in self.positions],
                "parts": dict(self.parts),
                "swept": self.swept,
            }
        }

    def seqnos(self) -> dict[str, int]:
        """How far each channel is, as a manifest has it."""
        return {str(at.channel): at.seqno for at in self.positions}

    def moved(self, unit: Unit) -> Head | None:
        """The head behind a unit; None where it is at the unit's end already. Errors: `OwnershipLost`."""
        held = [at for at in self.positions if at.channel in unit.moved]
        if held and all(at.seqno == unit.last_seqno for at in held):
            return None
        ours = [(unit.after(at.channel), unit.generation, unit.token) for at in held]
        is_whole = isinstance(unit.kind, Branch) or len(self.positions) == unit.channels
        if not held or not is_whole or [(at.seqno, at.generation, at.claim) for at in held] != ours:
            raise OwnershipLost(
                f"the position is no longer this claim's to move from {unit.after_seqno} to {unit.last_seqno}",
                channel=unit.channel,
                seqno=unit.last_seqno,
            )
        return replace(
            self,
            positions=tuple(
                replace(at, seqno=unit.last_seqno) if at.channel in unit.moved else at for at in self.positions
            ),
        )

    def taken(self, channel: int | None, *, generation: int, token: str, group: int | None) -> Head:
        """The head under a new claim of a channel, or of all."""
        return replace(
            self,
            positions=tuple(
                replace(at, generation=generation, claim=token) if channel in (None, at.channel) else at
                for at in self.positions
            ),
            parts=self.parts if channel is not None else self.parts_from(group),
        )

    def parts_from(self, group: int | None) -> dict[str, str]:
        """The parts of a group and of those behind it; None: no part stays."""
        return {name: token for name, token in self.parts.items() if group is not None and group_of(name) >= group}


def part_name(group: int, channel: int | None) -> str:
    """The name of a group's part, as `Head.parts` has it."""
    return f"{group}/{'all' if channel is None else channel}"


def group_of(name: str) -> int:
    """The group of a part."""
    return int(name.partition("/")[0])
