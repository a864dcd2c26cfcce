"""The phases of a job's control loop, and the transitions between them.

| phase | meaning |
| --- | --- |
| idle | no worker trains; workers may be starting |
| forming | workers load or share the newest state, and meet in a group |
| training | the group trains in chunks of steps |
| handing over | workers leave, or servers change; the group's state is taken if no worker keeps it |
| recovering | a fault, or the controller's restart, has ended the group; lasts until a new one forms |
| finished, failed | the job has ended, and its workers are released |

`NEXT` lists all legal transitions. A group always forms before it trains. Only a training job finishes. A restarted
controller goes from idle to recovering, or to the end that its job had reached.
"""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """A phase of a job's control loop."""

    IDLE = "idle"
    FORMING = "forming"
    TRAINING = "training"
    HANDING_OVER = "handing over"
    RECOVERING = "recovering"
    FINISHED = "finished"
    FAILED = "failed"


NEXT: dict[Phase, frozenset[Phase]] = {
    Phase.IDLE: frozenset({Phase.FORMING, Phase.RECOVERING, Phase.FINISHED, Phase.FAILED}),
    Phase.FORMING: frozenset({Phase.TRAINING, Phase.RECOVERING, Phase.FAILED}),
    Phase.TRAINING: frozenset({Phase.FORMING, Phase.HANDING_OVER, Phase.RECOVERING, Phase.FINISHED, Phase.FAILED}),
    Phase.HANDING_OVER: frozenset({Phase.IDLE, Phase.FORMING, Phase.RECOVERING, Phase.FAILED}),
    Phase.RECOVERING: frozenset({Phase.FORMING, Phase.RECOVERING, Phase.FAILED}),
    Phase.FINISHED: frozenset({Phase.FAILED}),
    Phase.FAILED: frozenset({Phase.FAILED}),
}
"""Legal transitions by phase. Every job may fail: the controller itself may raise at any time."""


class Lifecycle:
    """The present phase of one job."""

    def __init__(self) -> None:
        self.phase = Phase.IDLE

    @property
    def ended(self) -> bool:
        """True once the job will not train again."""
        return self.phase in (Phase.FINISHED, Phase.FAILED)

    def enter(self, phase: Phase) -> None:
        """Enter a phase. Raises RuntimeError if the transition is not in `NEXT`."""
        if phase not in NEXT[self.phase]:
            raise RuntimeError(f"a job cannot go from {self.phase.value} to {phase.value}")
        self.phase = phase
